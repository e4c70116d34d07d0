#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include "threads/pages.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

static const size_t MOST = 8 << 20; // bytes of one write, between which the system can end the process

static size_t page_size(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

// The end of the page that `at` lies in, or the end of the range.
static size_t page_end(const char *start, size_t at, size_t size, size_t page) {
    const size_t left = page - (uintptr_t)(start + at) % page;
    return size - at < left ? size : at + left;
}

static bool is_zero(const char *start, size_t size) {
    return size == 0 || (start[0] == 0 && memcmp(start, start + 1, size - 1) == 0);
}

static int write_all(int file, const char *from, size_t size, int64_t offset) {
    while (size > 0) {
        const ssize_t done = pwrite(file, from, size < MOST ? size : MOST, (off_t)offset);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return done < 0 ? errno : EIO;
        }
        from += done, size -= (size_t)done, offset += done;
    }
    return 0;
}

static int read_all(int file, char *to, size_t size, int64_t offset) {
    while (size > 0) {
        const ssize_t done = pread(file, to, size < MOST ? size : MOST, (off_t)offset);
        if (done < 0 && errno == EINTR) {
            continue;
        }
        if (done <= 0) {
            return done < 0 ? errno : EIO;
        }
        to += done, size -= (size_t)done, offset += done;
    }
    return 0;
}

int oe_pages_save(const char *start, size_t size, int file, int64_t offset, int64_t *room) {
    const size_t page = page_size();
    size_t begin = 0; // of a run of pages that are not zeros
    for (size_t at = 0; at < size;) {
        const size_t end = page_end(start, at, size, page);
        const bool zero = is_zero(start + at, end - at);
        if (zero || end == size || end - begin >= MOST) {
            const size_t written = (zero ? at : end) - begin;
            *room -= (int64_t)written;
            const int status = *room < 0 ? ENOSPC : write_all(file, start + begin, written, offset + (int64_t)begin);
            if (status != 0) {
                return status;
            }
            begin = end;
        }
        at = end;
    }
    return 0;
}

int oe_pages_drop(char *start, size_t size) {
#ifdef __linux__ // elsewhere MADV_DONTNEED need not give anything back, nor leave zeros
    const uintptr_t page = page_size();
    const uintptr_t first = ((uintptr_t)start + page - 1) / page * page, end = ((uintptr_t)start + size) / page * page;
    return first >= end || madvise((void *)first, end - first, MADV_DONTNEED) == 0 ? 0 : errno;
#else
    (void)start;
    (void)size;
    return ENOSYS;
#endif
}

void oe_pages_huge(const void *start, size_t size) {
#ifdef MADV_HUGEPAGE
    const size_t large = 2 << 20; // on x86, and on most others
    const uintptr_t page = page_size(), first = (uintptr_t)start / page * page, end = (uintptr_t)start + size;
    if (size >= large) {
        madvise((void *)first, (end - first + page - 1) / page * page, MADV_HUGEPAGE);
    }
#else
    (void)start;
    (void)size;
#endif
}

int oe_pages_load(char *start, size_t size, int file, int64_t offset) {
    const int64_t end = offset + (int64_t)size;
    for (int64_t at = offset; at < end;) {
        const off_t data = lseek(file, (off_t)at, SEEK_DATA);
        if (data < 0) {
            return errno == ENXIO ? 0 : errno; // nothing but a hole up to the file's end
        }
        const off_t hole = data < end ? lseek(file, data, SEEK_HOLE) : end;
        if (hole < 0) {
            return errno;
        }
        const int64_t stop = hole < end ? hole : end;
        const int status = data < stop ? read_all(file, start + (data - offset), (size_t)(stop - data), data) : 0;
        if (status != 0) {
            return status;
        }
        at = stop;
    }
    return 0;
}

void oe_pages_trim(void) {
#ifdef __GLIBC__
    malloc_trim(0);
#endif
}
