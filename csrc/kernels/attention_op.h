/* Attention over listed cells (attention.h) as operations of ggml's graphs: callbacks for ggml_custom_4d, run by the
 * CPU backend's threads. The first one cuts the lists into pieces, once for all layers that read the same lists. */
#ifndef OE_ATTENTION_OP_H
#define OE_ATTENTION_OP_H

#include "kernels/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

typedef struct oe_attention_params {
    const oe_attention_kernel *kernel;
    float scale, cap;
} oe_attention_params;

/* Bytes that oe_attention_plan_op needs as dst, for up to kv_heads key heads. */
int64_t oe_attention_plan_size(int64_t rows, int64_t kv_heads);

/* dst i8 [oe_attention_plan_size] from src[0] i32 [2, rows]: where each row's part of the list begins, and before what
 * it ends; and from src[1], the list i32 [n], its length alone. A part that is not in it is empty. */
void oe_attention_plan_op(struct ggml_tensor *dst, int ith, int nth, void *unused);

/* Floats that oe_attention_op needs as dst, the result [rows][heads][value_dim] first; for a list of n cells. */
int64_t oe_attention_size(int64_t rows, int64_t heads, int64_t value_dim, int64_t n);

/* dst f32 [oe_attention_size] from src: query f32 [key_dim, rows, heads], keys [key_dim, cells, kv_heads], values
 * [value_dim, cells, kv_heads], what oe_attention_plan_op wrote, the list i32 [n] of cells, and sinks f32 [heads] or
 * NULL. A row that sees nothing gets 0. Operations of one plan come one after the other: where threads take their
 * shares from is kept there. */
void oe_attention_op(struct ggml_tensor *dst, int ith, int nth, void *params);

#ifdef __cplusplus
}
#endif

#endif
