/* Freezes the clocks of a process, which read what the file FROZEN_CLOCK holds: a preloaded library.

   The file holds two 64-bit numbers of microseconds: the steady clock (CLOCK_MONOTONIC), and what the wall clock (CLOCK_REALTIME,
   gettimeofday, time) is ahead of it. So one write moves both clocks, and a write of the second number alone steps the wall clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *clocks(void) {
    static volatile int64_t *mapped;
    if (!mapped) {
        const char *file = getenv("FROZEN_CLOCK");
        int fd = file ? open(file, O_RDONLY) : -1;
        void *map = fd < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof *mapped, PROT_READ, MAP_SHARED, fd, 0);
        if (map == MAP_FAILED) {
            fputs("frozen.c: FROZEN_CLOCK names no file that can be mapped\n", stderr);
            _exit(1);
        }
        close(fd);
        mapped = map;
    }
    return mapped;
}

static int64_t wall_us(void) { return clocks()[0] + clocks()[1]; }

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    int64_t us;
    switch (clock) {
        case CLOCK_REALTIME:
        case CLOCK_REALTIME_COARSE: us = wall_us(); break;
        case CLOCK_MONOTONIC: us = clocks()[0]; break;
        default:
            if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
            return real(clock, time);
    }
    time->tv_sec = us / 1000000;
    time->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    int64_t us = wall_us();
    time->tv_sec = us / 1000000;
    time->tv_usec = us % 1000000;
    return 0;
}

time_t time(time_t *into) {
    time_t now = wall_us() / 1000000;
    if (into) *into = now;
    return now;
}

/* Valkey takes its steady clock from the processor if this file says that the processor's counter is steady. */
FILE *fopen(const char *path, const char *mode) {
    static FILE *(*real)(const char *, const char *);
    if (!real) real = dlsym(RTLD_NEXT, "fopen");
    return real(strcmp(path, "/proc/cpuinfo") == 0 ? "/dev/null" : path, mode);
}

/* Newer servers have a module look a name up in its own libraries first, where these functions are not. */
void *dlopen(const char *file, int flags) {
    static void *(*real)(const char *, int);
    if (!real) real = dlsym(RTLD_NEXT, "dlopen");
    return real(file, flags & ~RTLD_DEEPBIND);
}
