/* Small-batch matmul (kernel.h) as ggml custom operations: callbacks for ggml_custom_4d, run by the CPU backend's
 * threads. `rounding` is an oe_sb_rounding, `together` an oe_sb_together. What comes before a product may be
 * computed while activations are quantized: its results are not written to memory and read again. */
#ifndef OE_SB_OP_H
#define OE_SB_OP_H

#include <stdbool.h>

#include "kernels/small_batch/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* Size of oe_sb_quantize_op's dst in bytes. */
int64_t oe_sb_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t rows);

typedef struct oe_sb_rounding {
    const oe_sb_kernel *kernel;
    bool interleaved; /* for multiply_interleaved */
    float eps;  /* of a norm */
} oe_sb_rounding;

/* dst i8 [oe_sb_acts_size] from src[0] f32 [k, rows] with contiguous rows. */
void oe_sb_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *rounding);

/* The same of silu(src[0]) * src[1], both f32 [k, rows] with contiguous rows. */
void oe_sb_quantize_swiglu_op(struct ggml_tensor *dst, int ith, int nth, void *rounding);

/* The eps that ggml_rms_norm was given. */
float oe_sb_norm_eps(const struct ggml_tensor *norm);

/* The same of src[0] f32 [k, rows], each row divided by sqrt(mean of its squares + eps), times src[1], f32 [k]. */
void oe_sb_quantize_norm_op(struct ggml_tensor *dst, int ith, int nth, void *rounding);

typedef struct oe_sb_multiplying {
    const oe_sb_kernel *kernel;
    oe_sb_variant variant;
} oe_sb_multiplying;

#define OE_SB_TOGETHER 8 /* most products of one operation */

/* Products of the same activations. */
typedef struct oe_sb_together {
    int64_t rows; /* of activations */
    int count;
    oe_sb_multiplying products[OE_SB_TOGETHER];
} oe_sb_together;

/* dst f32, the results [m, rows] of each product in turn, from src[0], the activations, which one of these wrote, and
 * src[1] on, the weights [k, m] of each; with kernels that pack, if these do. Threads share out all rows of all weights
 * as if they were one matrix: so they wait for each other once, and each reads long runs. Several operations may share
 * src[0], but must run one after the other, because it holds their chunk counter. */
void oe_sb_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *together);

/* Threads take the groups of a product in wholes of this many: as many panels share each look at the activations. */
static inline int64_t oe_sb_groups_at_once(int64_t rows) { return rows < OE_SB_MANY ? 1 : 4; }

/* How many groups a thread takes at most, of products of k with so many rows: about as many as share the L2 cache, and
 * less than a millisecond's work. A thread that loses its CPU keeps the others waiting for what it has taken. */
static inline int64_t oe_sb_most_groups(const oe_sb_kernel *kernel, int64_t k, int64_t rows) {
    if (rows < OE_SB_MANY) {
        return INT64_MAX;
    }
    const int64_t fit = (INT64_C(1) << 27) / (OE_SB_GROUP * k * rows) / 8 * 8;
    return kernel->for_few ? 32 : fit < 8 ? 8 : fit;
}

#ifdef __cplusplus
}
#endif

#endif
