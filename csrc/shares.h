/* How the threads of one operation share out what there is to do: whoever is done with his share takes the next. */
#ifndef OE_SHARES_H
#define OE_SHARES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Things that are taken, and beyond their number, threads that have gone away. It has a cache line of its own, and is 0
 * between operations. */
typedef _Atomic int64_t oe_shares;

/* A thread's next things, first .. last - 1: its part of what is left, so that most is done in long runs, while a
 * thread that is slowed down by what else runs on its CPU finds less to do. */
static inline bool oe_shares_take(oe_shares *taken, int64_t things, int nth, int64_t *first, int64_t *last) {
    int64_t at = atomic_load_explicit(taken, memory_order_relaxed), size;
    do {
        if (at >= things) {
            return false;
        }
        size = (things - at + nth - 1) / nth;
    } while (!atomic_compare_exchange_weak_explicit(taken, &at, at + size, memory_order_relaxed, memory_order_relaxed));
    *first = at;
    *last = at + size;
    return true;
}

/* To be called once by each thread when nothing is left. */
static inline void oe_shares_leave(oe_shares *taken, int64_t things, int nth) {
    if (atomic_fetch_add_explicit(taken, 1, memory_order_relaxed) == things + nth - 1) { /* the last to go away */
        atomic_store_explicit(taken, 0, memory_order_relaxed);
    }
}

#endif
