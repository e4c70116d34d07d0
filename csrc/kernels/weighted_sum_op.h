/* Weighted sums of rows as a ggml custom operation: a callback for ggml_custom_4d, run by the CPU backend's threads. It
 * replaces a product, which takes 2 ns per number in ggml where a row has one weight, and an addition for each row,
 * after each of which all threads wait for each other. */
#ifndef OE_WEIGHTED_SUM_OP_H
#define OE_WEIGHTED_SUM_OP_H

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* dst f32 [m, n], contiguous, from src[0] f32 [m, rows, n] with contiguous rows and src[1] f32 [1, rows, n]. Rows are
 * added in order, and each product is rounded before, so the bits are those of ggml's operations. */
void oe_weighted_sum_op(struct ggml_tensor *dst, int ith, int nth, void *unused);

#ifdef __cplusplus
}
#endif

#endif
