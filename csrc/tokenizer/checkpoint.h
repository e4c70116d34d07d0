/* A caller's function that long work calls now and then, and that may end it. */
#ifndef OE_CHECKPOINT_H
#define OE_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

enum {
    OE_CHECKPOINT_WORK = 1 << 15, /* units of work between two calls; one takes 20 to 200 ns */
    OE_STOPPED = -2,              /* status of functions that the checkpoint ended */
};

/* Zero `done` before the first use. */
typedef struct {
    int (*call)(void *context); /* nonzero ends the work */
    void    *context;
    uint32_t done;
} oe_checkpoint;

/* Counts one unit of work. 0, or OE_STOPPED. */
static inline int oe_checkpoint_pass(oe_checkpoint *checkpoint) {
    if (++checkpoint->done < OE_CHECKPOINT_WORK) {
        return 0;
    }
    checkpoint->done = 0;
    return checkpoint->call(checkpoint->context) ? OE_STOPPED : 0;
}

#endif
