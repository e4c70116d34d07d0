/* Inner loops of the recurrent operations, compiled once for each instruction set (base/simd16.h): the same bits with
 * each. A call computes some columns of one head, or some channels, for all rows of one segment.
 *
 * A state is a matrix whose columns are independent of each other: lanes are columns, so nothing is summed across
 * lanes. Rows of a segment are computed one after the other. */
#ifndef OE_RECURRENT_KERNEL_H
#define OE_RECURRENT_KERNEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define OE_CONV_TAPS 16       /* most taps of a convolution */
#define OE_CONV_CHANNELS 512  /* most channels of a call: a few rows of them fit into the L1 cache */
#define OE_STATE_ROWS 256     /* most rows of a state */
#define OE_STATE_COLUMNS 32   /* columns of a call: with 128 rows they fit into the L1 cache */

/* Rows of one sequence, at neighbouring positions, and the states before and behind them; see segments.h. */
typedef struct {
    const int32_t *rows; /* of this segment */
    int64_t n;
    const float *read; /* NULL: zeros */
    float *write;      /* NULL: nothing is left */
} oe_segment;

/* Floats of a tensor for each row of the batch. */
typedef struct {
    const char *at;
    size_t row; /* bytes from one row of the batch to the next */
} oe_operand;

static inline const float *oe_operand_at(const oe_operand *x, int64_t row) {
    return (const float *)(const void *)(x->at + (size_t)row * x->row);
}

/* `count` channels, up to OE_CONV_CHANNELS, of `channels`. */
typedef struct {
    oe_operand x;
    oe_operand before, after; /* what inputs and results are multiplied with, where `gated` */
    bool gated, silu;
    const float *weights; /* [taps][OE_CONV_CHANNELS], 0 from `count` on */
    const float *bias;    /* [count], or NULL */
    float *to; /* rows of `channels` */
    int64_t channels, count, taps;
    const float *read; /* [taps - 1] rows of `channels`, or NULL: zeros */
    float *write;      /* the same, or NULL */
} oe_convolution;

/* `count` columns, up to OE_STATE_COLUMNS, of a state: [rows][count]. */
typedef struct {
    int64_t rows, count;
    const float *read; /* NULL: zeros */
    float *write;      /* or NULL */
    float *to;         /* of row 0 of the batch */
    int64_t to_row;    /* floats from one row of the batch to the next */
} oe_columns;

typedef struct {
    oe_columns state;
    oe_operand q, k, v, g, beta;
    bool by_row;  /* g has a number for each row of the state, not one for all */
    bool to_unit; /* q and k are divided by their lengths, sqrt(sum of squares + eps), and q by sqrt(rows) */
    float eps;
} oe_delta_net;

typedef struct {
    oe_columns state;
    oe_operand x, dt, b, c;
    float a;
    const float *d;          /* NULL: 0 */
    const float *read_scale; /* of the columns' state; NULL or 0: 1 */
    float *write_scale;      /* or NULL */
} oe_ssm_scan;

typedef struct oe_recurrent_kernel {
    /* weight [count][taps] -> to [taps][OE_CONV_CHANNELS], 0 from `count` on. */
    void (*transpose)(const float *weight, int64_t count, int64_t taps, float *to);
    void (*convolve)(const oe_convolution *, const oe_segment *);
    void (*delta_net)(const oe_delta_net *, const oe_segment *);
    void (*ssm_scan)(const oe_ssm_scan *, const oe_segment *);
} oe_recurrent_kernel;

typedef enum {
    OE_RECURRENT_SCALAR,
    OE_RECURRENT_AVX2,
    OE_RECURRENT_AVX512,
    OE_RECURRENT_NEON,
    OE_RECURRENT_ISAS
} oe_recurrent_isa;

#ifdef __cplusplus
extern "C" {
#endif

/* NULL where this build or this CPU has none. */
const oe_recurrent_kernel *oe_recurrent_kernel_find(oe_recurrent_isa isa);

#ifdef __cplusplus
}
#endif

#endif
