/* How the threads of a graph share out one operation whose parts cost unlike much, or whose CPUs are unlike quick. */
#ifndef OE_CHUNK_COUNTER_H
#define OE_CHUNK_COUNTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define OE_CACHE_LINE 64

/* Parts that are taken, and beyond their number, threads that have gone away. It has a cache line of its own, and is 0
 * between operations. */
typedef _Atomic int64_t oe_chunk_counter;

/* The counter behind `size` bytes, which need 2 * OE_CACHE_LINE more. */
static inline oe_chunk_counter *oe_chunk_counter_behind(const void *data, int64_t size) {
    const uintptr_t end = (uintptr_t)data + (uintptr_t)size;
    return (oe_chunk_counter *)((end + OE_CACHE_LINE - 1) / OE_CACHE_LINE * OE_CACHE_LINE);
}

/* A thread's next parts: its portion of what is left, so that most of a matrix is read in long runs, while a thread
 * that is slowed down by what else runs on its CPU finds less to do. False where nothing is left. */
static inline bool oe_take_chunk(oe_chunk_counter *taken, int64_t parts, int nth, int64_t *first, int64_t *last) {
    int64_t at = atomic_load_explicit(taken, memory_order_relaxed), size;
    do {
        if (at >= parts) {
            return false;
        }
        size = (parts - at + nth - 1) / nth;
    } while (!atomic_compare_exchange_weak_explicit(taken, &at, at + size, memory_order_relaxed, memory_order_relaxed));
    *first = at;
    *last = at + size;
    return true;
}

/* Each thread calls it once, when it finds nothing left: the last one sets the counter back. */
static inline void oe_leave_chunks(oe_chunk_counter *taken, int64_t parts, int nth) {
    if (atomic_fetch_add_explicit(taken, 1, memory_order_relaxed) == parts + nth - 1) {
        atomic_store_explicit(taken, 0, memory_order_relaxed);
    }
}

#endif
