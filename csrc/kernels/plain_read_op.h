/* Reading weights and nothing else: the time that products with few rows are compared with. */
#ifndef OE_PLAIN_READ_OP_H
#define OE_PLAIN_READ_OP_H

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* dst i32 [at least 16 for each thread] from src[0], contiguous; each thread reads an equal share, in order. */
void oe_plain_read_op(struct ggml_tensor *dst, int ith, int nth, void *unused);

#ifdef __cplusplus
}
#endif

#endif
