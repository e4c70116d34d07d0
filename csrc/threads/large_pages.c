#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "threads/large_pages.h"

#ifdef __linux__
#include <fcntl.h>
#include <stdbool.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "threads/fan_out.h"

#ifndef MADV_POPULATE_READ // in headers from before Linux 5.14
#define MADV_POPULATE_READ 22
#endif

enum {
    LARGE = 2 << 20,
    PARTS = OE_LARGE_PAGES_AT_ONCE / LARGE,
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
    int64_t offset;
    bool is_large[PARTS];
    size_t small[PARTS]; // numbers of the parts that are read
} parts_of_file;

static void note_large(void *context, uint64_t begin, uint64_t end) {
    parts_of_file *of = context;
    for (uint64_t at = begin; at + LARGE <= end; at += LARGE) {
        of->is_large[(at - (uintptr_t)of->start) / LARGE] = true;
    }
}

// Linux drops a cached page only when no process maps it and the disk has its contents: so it is unmapped and written
// out first.
static int read_again(void *context, size_t i) {
    const parts_of_file *of = context;
    const size_t at = of->small[i] * LARGE;
    const off_t in_file = (off_t)(of->offset + (int64_t)at);
    madvise(of->start + at, LARGE, MADV_DONTNEED);
    sync_file_range(of->file, in_file, LARGE,
                    SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER);
    posix_fadvise(of->file, in_file, LARGE, POSIX_FADV_DONTNEED);
    return madvise(of->start + at, LARGE, MADV_POPULATE_READ);
}

int64_t oe_large_pages_read_again(char *start, size_t size, int file, int64_t offset, int threads, int64_t *read) {
    parts_of_file of = {.start = start, .file = file, .offset = offset};
    const size_t parts = size / LARGE < PARTS ? size / LARGE : PARTS;
    *read = 0;
    if ((uintptr_t)start % LARGE) {
        return 0; // a part of the file lies across two large pages
    }
    if (each_large(start, parts * LARGE, note_large, &of) != 0) {
        return -1;
    }
    size_t n = 0;
    for (size_t i = 0; i < parts; i++) {
        if (!of.is_large[i]) {
            of.small[n++] = i;
        }
    }
    if (n == 0) {
        return 0;
    }
    oe_fan_out(n, threads, read_again, &of); // what could not be paged in is not in large pages below
    *read = (int64_t)n * LARGE;
    return oe_large_pages_bytes(start, parts * LARGE) - (int64_t)(parts - n) * LARGE;
}
#else
int64_t oe_large_pages_bytes(const char *start, size_t size) {
    (void)start;
    (void)size;
    return -1;
}

int64_t oe_large_pages_read_again(char *start, size_t size, int file, int64_t offset, int threads, int64_t *read) {
    (void)start;
    (void)size;
    (void)file;
    (void)offset;
    (void)threads;
    *read = 0;
    return -1;
}
#endif
