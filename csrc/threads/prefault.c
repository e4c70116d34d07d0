#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "threads/prefault.h"

#include <stdint.h>
#include <string.h>
#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#ifndef MADV_POPULATE_READ // in headers from before Linux 5.14
#define MADV_POPULATE_READ 22
#endif
#endif

#include "threads/fan_out.h"

static const size_t STRETCH = 4 << 20;

typedef struct {
    char *start;
    size_t size;
} memory;

static size_t count(size_t size) {
    return (size + STRETCH - 1) / STRETCH;
}

static memory nth(const memory *all, size_t i) {
    const size_t begin = i * STRETCH, left = all->size - begin;
    return (memory){all->start + begin, left < STRETCH ? left : STRETCH};
}

static int zero(void *all, size_t i) {
    const memory m = nth(all, i);
    memset(m.start, 0, m.size);
    return 0;
}

// When Linux maps a page, it also maps the cached pages around it (fault_around_bytes). Asking for every single page
// would make it look each of them up again, which takes two thirds as long again.
static const size_t AROUND = 64 << 10;

static int populate(void *all, size_t i) {
#ifdef MADV_POPULATE_READ
    const memory m = nth(all, i);
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    const uintptr_t end = (uintptr_t)m.start + m.size;
    for (uintptr_t at = (uintptr_t)m.start / page * page; at < end; at = (at / AROUND + 1) * AROUND) {
        // Two pages: a page that must first be read from the file is mapped alone; then the second maps those around.
        const size_t size = end - at < 2 * page ? end - at : 2 * page;
        if (madvise((void *)at, size, MADV_POPULATE_READ) != 0) {
            return -1;
        }
    }
    return 0;
#else
    (void)all;
    (void)i;
    return -1;
#endif
}

void oe_prefault_zero(void *start, size_t size, int threads) {
    memory all = {start, size};
    oe_fan_out(count(size), threads, zero, &all);
}

int oe_prefault_populate(void *start, size_t size, int threads) {
    memory all = {start, size};
    return oe_fan_out(count(size), threads, populate, &all);
}
