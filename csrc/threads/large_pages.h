// The pages of 2 MiB that a mapped file lies in. Linux keeps a file in pages about as large as the pieces that it was
// written in, so one that a program has just written, or downloaded, lies in small ones. Read again, it lies in large
// ones, which are read faster (pages.h says why). Linux does that since 6.16 on ext4, since 5.18 on XFS, where the
// mapping asks for them (oe_pages_huge).
#ifndef OE_LARGE_PAGES_H
#define OE_LARGE_PAGES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Bytes of a range that lie in large pages, of those that are mapped now; -1 where the system cannot tell (Linux can
// since 6.7).
int64_t oe_large_pages_bytes(const char *start, size_t size);

enum { OE_LARGE_PAGES_AT_ONCE = 32 << 20 };

// Reads those parts of a range again that lie in small pages, on so many `threads`: of OE_LARGE_PAGES_AT_ONCE bytes at
// most, what is beyond stays. `start` is where byte `offset` of the file is mapped, a multiple of 2 MiB. Pages stay
// small if the file system has no large ones, or if another process maps the file. Other threads may read the memory
// meanwhile, and find the same bytes. `read`: how many bytes were read. Returns how many bytes lie in large pages now
// that did not before, or -1 as above.
int64_t oe_large_pages_read_again(char *start, size_t size, int file, int64_t offset, int threads, int64_t *read);

#ifdef __cplusplus
}
#endif

#endif
