/* The products of few_rows.h as operations of ggml's graphs: callbacks for ggml_custom_4d, run by the CPU backend's
 * threads. `kernel` is an oe_few_kernel. */
#ifndef OE_FEW_ROWS_OP_H
#define OE_FEW_ROWS_OP_H

#include "kernels/small_batch.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* Bytes that oe_few_quantize_op needs as dst. */
int64_t oe_few_acts_size(const oe_few_kernel *kernel, int64_t k, int64_t rows);

/* dst i8 [oe_few_acts_size] from src[0] f32 [k, rows] with contiguous rows. */
void oe_few_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

/* dst f32 [m, rows] from src[0], the weights [k, m], and src[1], which oe_few_quantize_op wrote. Several products may
 * share one src[1], one after the other: where threads take their shares from is kept there. */
void oe_few_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *kernel);

#ifdef __cplusplus
}
#endif

#endif
