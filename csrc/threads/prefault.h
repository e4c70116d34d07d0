// Zeroes or pages in long ranges of memory, in pieces, on several threads at once.
#ifndef OE_PREFAULT_H
#define OE_PREFAULT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Sets all bytes to zero, which makes the system allocate the pages.
void oe_prefault_zero(void *start, size_t size, int threads);

// Reads pages of a mapped file and enters them into this process's page tables. Returns 0; or -1 where the system lacks
// the call (Linux has it since 5.14) or a page cannot be read: then pages are mapped one by one on first use.
int oe_prefault_populate(void *start, size_t size, int threads);

#ifdef __cplusplus
}
#endif

#endif
