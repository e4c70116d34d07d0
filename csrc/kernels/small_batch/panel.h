/* What panels of both block lengths (panel256.h, panel32.h) share. */
/* The whole sums of a step, by tile of weights (low and high, or two blocks), row of activations and lane. */
typedef struct tile_dots {
    int32_t of[2][32][LANES] __attribute__((aligned(64)));
} tile_dots;

/* The four sums s0 to s3 (kernel.h) of each row of activations. */
typedef struct row_sums {
    floats of[OE_QUAD][32];
} row_sums;
