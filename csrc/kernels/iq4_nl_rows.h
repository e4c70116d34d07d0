/* Rows of IQ4_NL written into a cache, as a ggml custom operation in place: a callback for ggml_custom_inplace, shared
 * among all threads. ggml searches the nearest of 16 levels number by number, which takes 13 ns each. */
#ifndef OE_IQ4_NL_ROWS_H
#define OE_IQ4_NL_ROWS_H

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* dst and src[0]: the table, iq4_nl [n, rows]. Row i of src[1], f32 [n, k] with contiguous rows, goes into the row that
 * src[2], i32 or i64 [k], names; it must be one of the table's. The bytes are those of ggml's set_rows, but for blocks
 * of which nothing reaches 1e-15: their scale is 0, and ggml leaves their codes as they happen to be. */
void oe_iq4_nl_rows_op(struct ggml_tensor *dst, int ith, int nth, void *unused);

#ifdef __cplusplus
}
#endif

#endif
