/* What panels of both block lengths (panel256.h, panel32.h) share. */
/* Whole-number results of a step: its two tiles of weights (low and high, or two blocks), rows of activations, lanes. */
typedef struct tile_dots {
    int32_t of[2][32][LANES] __attribute__((aligned(64)));
} tile_dots;

/* The four sums s0 to s3 (kernel.h) of each row of activations. */
typedef struct row_sums {
    floats of[OE_QUAD][32];
} row_sums;
