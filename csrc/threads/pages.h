// Memory that is given back to the system for a while, at the same addresses, and what it held in a file.
#ifndef OE_PAGES_H
#define OE_PAGES_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// Writes memory into a file, from byte `offset` on. Pages of zeros are left out: the file has holes there.
// `room` are the bytes that may still be written, and becomes less by those that are.
// Returns 0, or an errno: ENOSPC where there is no room.
int oe_pages_save(const char *start, size_t size, int file, int64_t offset, int64_t *room);

// Gives the whole pages of a range back to the system. Pages of memory are zeros afterwards, pages of a mapped file are
// read from it again. Returns 0, or an errno: ENOSYS where the system cannot do that.
int oe_pages_drop(char *start, size_t size);

// Reads what oe_pages_save wrote into the same memory, which is zeros where its pages were dropped. Returns 0, or an
// errno: EIO where the file is shorter.
int oe_pages_load(char *start, size_t size, int file, int64_t offset);

// Asks for large pages (2 MiB) in a range where the system gives them to those who ask. For memory before its first
// use, and for mapped files, which are then also read in such pieces. Without them, a stream of bytes waits for the
// table of pages at every 4 KiB: in a virtual machine on Zen 4 one thread read 19 GB/s, with them 28. Nothing is lost
// where the system refuses, and smaller ranges stay as they are.
void oe_pages_huge(const void *start, size_t size);

// Has malloc give back what it keeps for later, where it can.
void oe_pages_trim(void);

#ifdef __cplusplus
}
#endif

#endif
