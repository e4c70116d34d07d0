#define _GNU_SOURCE
#include "threads/thread_waits.h"

#ifdef __linux__

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

long oe_thread_id(void) { return syscall(SYS_gettid); }

int oe_thread_waits_open(long thread) {
    char path[64];
    snprintf(path, sizeof path, "/proc/self/task/%ld/schedstat", thread);
    return open(path, O_RDONLY | O_CLOEXEC);
}

/* The file's three numbers: nanoseconds on a CPU, nanoseconds of waiting for one, times that it got one. */
int64_t oe_thread_waits_read(int descriptor) {
    char text[96];
    const ssize_t n = pread(descriptor, text, sizeof text - 1, 0);
    if (n <= 0) {
        return -1;
    }
    text[n] = 0;
    char *end, *second;
    strtoull(text, &second, 10);
    const unsigned long long waited = strtoull(second, &end, 10);
    return end == second ? -1 : (int64_t)waited;
}

void oe_thread_waits_close(int descriptor) { close(descriptor); }

#else

long oe_thread_id(void) { return 0; }
int oe_thread_waits_open(long thread) { return (void)thread, -1; }
int64_t oe_thread_waits_read(int descriptor) { return (void)descriptor, -1; }
void oe_thread_waits_close(int descriptor) { (void)descriptor; }

#endif
