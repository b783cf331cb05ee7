/* A library to preload. It moves or freezes the clocks of a process, fills its disk and parts it from others, as the file CLOCK_FILE
   says.

   The file holds 64-bit numbers. Two are microseconds: the steady clock (CLOCK_MONOTONIC), or 0 if the clocks go on as they do; and
   what the wall clock (CLOCK_REALTIME, gettimeofday, time) is ahead of the frozen steady clock, or of the time. So one write moves
   both frozen clocks, and a write of the second number alone steps the wall clock. The others may be missing. While the third is not
   0, no append-only file takes another byte: the disk is full. (A node of a cluster ends if it can't write its configuration.) If the
   fourth is not 0, both clocks show multiples of so many microseconds: a test that looks for the moment of a call has few to try. The
   fifth holds two bits: while the first is set, nothing passes the connections to other nodes (TCP); while the second is set, nothing
   passes those to clients (Unix sockets). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *clocks(void) {
    static volatile int64_t *mapped;
    if (!mapped) {
        const char *file = getenv("CLOCK_FILE");
        int fd = file ? open(file, O_RDONLY) : -1;
        void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 5 * sizeof *mapped, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            fputs("clock.c: CLOCK_FILE names no file that can be mapped\n", stderr);
            _exit(1);
        }
        close(fd);
        mapped = map;
    }
    return mapped;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int64_t us, steady = clocks()[0];
    int wall = clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE;
    int64_t step = clocks()[3];
    if (!wall && (clock != CLOCK_MONOTONIC || !(steady || step))) return real(clock, time);
    us = steady;
    if (!us) {
        int status = real(clock, time);
        if (status) return status;
        us = (int64_t)time->tv_sec * 1000000 + time->tv_nsec / 1000;
    }
    if (wall) us += clocks()[1];
    if (step) us -= us % step;
    time->tv_sec = us / 1000000;
    time->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return status;
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}

/* Valkey takes its steady clock from the processor if this file says that the processor's counter is steady. */
static const char *hide(const char *path) {
    return strcmp(path, "/proc/cpuinfo") == 0 && (clocks()[0] || clocks()[3]) ? "/dev/null" : path;
}

FILE *fopen(const char *path, const char *mode) {
    static FILE *(*real)(const char *, const char *);
    if (!real) real = dlsym(RTLD_NEXT, "fopen");
    return real(hide(path), mode);
}

FILE *fopen64(const char *path, const char *mode) {
    static FILE *(*real)(const char *, const char *);
    if (!real) real = dlsym(RTLD_NEXT, "fopen64");
    return real(hide(path), mode);
}

/* While the steady clock is frozen, random numbers are, too: records with ids have equal bytes then. */
int getentropy(void *buffer, size_t length) {
    static int (*real)(void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "getentropy");
    if (!clocks()[0]) return real(buffer, length);
    memset(buffer, 42, length);
    return 0;
}

/* With RTLD_DEEPBIND, which newer servers use, a module would find the functions of the C library instead of these. */
void *dlopen(const char *file, int flags) {
    static void *(*real)(const char *, int);
    if (!real) real = dlsym(RTLD_NEXT, "dlopen");
    return real(file, flags & ~RTLD_DEEPBIND);
}

/* Whether nothing passes the connection at present. */
static int is_parted(int fd) {
    struct sockaddr_storage address;
    socklen_t length = sizeof address;
    if (!clocks()[4] || getsockname(fd, (struct sockaddr *)&address, &length)) return 0;
    errno = EAGAIN;
    return clocks()[4] & (address.ss_family == AF_UNIX ? 2 : 1);
}

ssize_t read(int fd, void *bytes, size_t count) {
    static ssize_t (*real)(int, void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "read");
    return is_parted(fd) ? -1 : real(fd, bytes, count);
}

ssize_t writev(int fd, const struct iovec *vectors, int count) {
    static ssize_t (*real)(int, const struct iovec *, int);
    if (!real) real = dlsym(RTLD_NEXT, "writev");
    return is_parted(fd) ? -1 : real(fd, vectors, count);
}

/* The append-only file is written by this function, and a snapshot by others. */
ssize_t write(int fd, const void *bytes, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = dlsym(RTLD_NEXT, "write");
    if (is_parted(fd)) return -1;
    if (clocks()[2]) {
        char link[64], name[1024];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, name, sizeof name);
        if (length > 4 && memcmp(name + length - 4, ".aof", 4) == 0) {
            errno = ENOSPC;
            return -1;
        }
    }
    return real(fd, bytes, count);
}
