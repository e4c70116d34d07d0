// Long memory, stretch by stretch, on several threads at once.
#ifndef OE_PREFAULT_H
#define OE_PREFAULT_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

// Sets all bytes to zero, and so takes the memory from the system.
void oe_prefault_zero(void *start, size_t size, int threads);

// Brings pages of a mapped file into memory and into this process's page tables. 0, or -1 where the system has no such
// call (Linux has since 5.14) or a page cannot be read; pages come one by one then, when they are used.
int oe_prefault_populate(void *start, size_t size, int threads);

#ifdef __cplusplus
}
#endif

#endif
