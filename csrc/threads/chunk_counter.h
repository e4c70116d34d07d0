/* Shares the parts of one operation out among threads, when parts differ in cost or CPUs differ in speed. */
#ifndef OE_CHUNK_COUNTER_H
#define OE_CHUNK_COUNTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define OE_CACHE_LINE 64

/* The number of parts taken; when all are taken, it goes on to count the threads that have left. It has its own cache
 * line, and is 0 between operations. */
typedef _Atomic int64_t oe_chunk_counter;

/* The counter behind `size` bytes of data; the allocation needs 2 * OE_CACHE_LINE more. */
static inline oe_chunk_counter *oe_chunk_counter_behind(const void *data, int64_t size) {
    const uintptr_t end = (uintptr_t)data + (uintptr_t)size;
    return (oe_chunk_counter *)((end + OE_CACHE_LINE - 1) / OE_CACHE_LINE * OE_CACHE_LINE);
}

/* Takes a thread's next parts: 1/nth of what is left, at most `most`, in whole `units` if there is one for each thread.
 * So most of a matrix is read in long runs, and a thread whose CPU is busy with other work takes less. False where
 * nothing is left. */
static inline bool oe_take_chunk_of(oe_chunk_counter *taken, int64_t parts, int nth, int64_t most, int64_t unit,
                                    int64_t *first, int64_t *last) {
    int64_t at = atomic_load_explicit(taken, memory_order_relaxed), size;
    unit = parts < unit * nth ? 1 : unit;
    do {
        if (at >= parts) {
            return false;
        }
        size = (parts - at + nth - 1) / nth;
        size = ((size < most ? size : most) + unit - 1) / unit * unit;
        size = size < parts - at ? size : parts - at;
    } while (!atomic_compare_exchange_weak_explicit(taken, &at, at + size, memory_order_relaxed, memory_order_relaxed));
    *first = at;
    *last = at + size;
    return true;
}

static inline bool oe_take_chunk(oe_chunk_counter *taken, int64_t parts, int nth, int64_t *first, int64_t *last) {
    return oe_take_chunk_of(taken, parts, nth, parts, 1, first, last);
}

/* Each thread calls it once, when nothing is left; the last thread resets the counter. */
static inline void oe_leave_chunks(oe_chunk_counter *taken, int64_t parts, int nth) {
    if (atomic_fetch_add_explicit(taken, 1, memory_order_relaxed) == parts + nth - 1) {
        atomic_store_explicit(taken, 0, memory_order_relaxed);
    }
}

#endif
