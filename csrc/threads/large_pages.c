#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "threads/large_pages.h"

#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#ifdef __linux__
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "threads/fan_out.h"

#ifndef MADV_POPULATE_READ // in headers from before Linux 5.14
#define MADV_POPULATE_READ 22
#endif

enum {
    LARGE = 2 << 20,
    AT_ONCE = 16,    // parts that are read between two looks at the clock
    REGIONS = 256    // that the system tells at once
};

// As in linux/fs.h, which has them since 6.7.
typedef struct {
    uint64_t start, end, categories;
} page_region;

typedef struct {
    uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
    uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
} page_scan;

#define SCAN_PAGES _IOWR('f', 16, page_scan)
#define PAGE_IS_LARGE (1 << 6)

static double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// Calls `found` with each run of large pages. Returns 0, or -1 where the system cannot tell.
static int each_large(const char *start, size_t size, void (*found)(void *context, uint64_t begin, uint64_t end),
                      void *context) {
    page_region regions[REGIONS];
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE), end = (uintptr_t)start + size / page * page;
    page_scan scan = {.size = sizeof scan, .start = (uintptr_t)start, .end = end, .vec = (uintptr_t)regions,
                      .vec_len = REGIONS, .category_mask = PAGE_IS_LARGE, .return_mask = PAGE_IS_LARGE};
    const int file = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    int n = file < 0 ? -1 : 0;
    while (n >= 0 && scan.start < end) {
        n = ioctl(file, SCAN_PAGES, &scan);
        for (int i = 0; i < n; i++) {
            found(context, regions[i].start, regions[i].end);
        }
        scan.start = scan.walk_end;
    }
    if (file >= 0) {
        close(file);
    }
    return n < 0 ? -1 : 0;
}

static void add_bytes(void *context, uint64_t begin, uint64_t end) {
    *(int64_t *)context += (int64_t)(end - begin);
}

int64_t oe_large_pages_bytes(const char *start, size_t size) {
    int64_t bytes = 0;
    return each_large(start, size, add_bytes, &bytes) == 0 ? bytes : -1;
}

typedef struct {
    char *start;
    int file;
    bool *is_large;  // by part
    size_t parts;
    size_t *small;   // numbers of the parts that are read next
} parts_of_file;

static void note_large(void *context, uint64_t begin, uint64_t end) {
    const parts_of_file *of = context;
    for (uint64_t at = begin; at + LARGE <= end; at += LARGE) {
        of->is_large[(at - (uintptr_t)of->start) / LARGE] = true;
    }
}

// Pages are dropped that are written to the disk and mapped by nobody.
static int read_again(void *context, size_t i) {
    const parts_of_file *of = context;
    const size_t at = of->small[i] * LARGE;
    madvise(of->start + at, LARGE, MADV_DONTNEED);
    sync_file_range(of->file, (off_t)at, LARGE,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(of->file, (off_t)at, LARGE, POSIX_FADV_DONTNEED);
    return madvise(of->start + at, LARGE, MADV_POPULATE_READ);
}

// Reads up to AT_ONCE parts behind *next again. Returns how many there were.
static size_t read_some(parts_of_file *of, size_t *next, int threads) {
    size_t small[AT_ONCE], n = 0;
    for (; *next < of->parts && n < AT_ONCE; (*next)++) {
        if (!of->is_large[*next]) {
            small[n++] = *next;
        }
    }
    of->small = small;
    oe_fan_out(n, threads, read_again, of);
    return n;
}

static int64_t read_parts(parts_of_file *of, int threads, double seconds, double least) {
    const size_t size = of->parts * LARGE;
    const int64_t before = oe_large_pages_bytes(of->start, size);
    const double begin = seconds_now();
    int64_t gained = 0;
    for (size_t next = 0, read = 0, n; (n = read_some(of, &next, threads)) > 0;) {
        const double took = seconds_now() - begin;
        const int64_t gained_before = gained;
        read += n;
        gained = oe_large_pages_bytes(of->start, size) - before;
        if (took > seconds || (double)read * LARGE < least * took || gained <= gained_before) {
            break;
        }
    }
    return gained;
}

int64_t oe_large_pages_read_again(char *start, size_t size, int file, int threads, double seconds, double least) {
    parts_of_file of = {.start = start, .file = file, .parts = size / LARGE};
    if ((uintptr_t)start % LARGE || of.parts == 0 || seconds <= 0) {
        return 0; // a part of the file lies across two large pages
    }
    of.is_large = calloc(of.parts, sizeof *of.is_large);
    if (!of.is_large) {
        return 0;
    }
    const int known = each_large(start, of.parts * LARGE, note_large, &of);
    const int64_t gained = known == 0 ? read_parts(&of, threads, seconds, least) : -1;
    free(of.is_large);
    return gained;
}
#else
int64_t oe_large_pages_bytes(const char *start, size_t size) {
    (void)start;
    (void)size;
    return -1;
}

int64_t oe_large_pages_read_again(char *start, size_t size, int file, int threads, double seconds, double least) {
    (void)start;
    (void)size;
    (void)file;
    (void)threads;
    (void)seconds;
    (void)least;
    return -1;
}
#endif
