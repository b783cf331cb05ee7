/* A library to preload. It moves the wall clock of a process by the microseconds in the file CLOCK_FILE, and no other clock. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t moved(void) {
    static volatile int64_t *offset;
    if (!offset) {
        static int64_t zero;
        const char *file = getenv("CLOCK_FILE");
        int fd = file ? open(file, O_RDONLY) : -1;
        void *map = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
        offset = map == MAP_FAILED ? &zero : map;
    }
    return *offset;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int status = real(clock, time);
    if (status == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t us = (int64_t)time->tv_sec * 1000000 + time->tv_nsec / 1000 + moved();
        time->tv_sec = us / 1000000;
        time->tv_nsec = us % 1000000 * 1000 + time->tv_nsec % 1000;
    }
    return status;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int status = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return status;
}

/* With RTLD_DEEPBIND, which newer servers use, a module would find the functions of the C library instead of these. */
void *dlopen(const char *file, int flags) {
    static void *(*real)(const char *, int);
    if (!real) real = dlsym(RTLD_NEXT, "dlopen");
    return real(file, flags & ~RTLD_DEEPBIND);
}

time_t time(time_t *into) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (into) *into = now.tv_sec;
    return now.tv_sec;
}
