/* What panels of both block lengths (panel256.h, panel32.h) share. */
/* The whole sums of a step, by tile of weights (low and high, or two blocks), row of activations and lane. */
typedef struct tile_dots {
    int32_t of[2][32][LANES] __attribute__((aligned(64)));
} tile_dots;

/* Where a sum stands; `first`: nothing was added to it yet. */
INLINE floats sum_before(bool first, const floats *sum) { return first ? floats_set(0) : *sum; }
