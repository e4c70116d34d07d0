/* Paged attention (attention.h) as ggml custom operations: callbacks for ggml_custom_4d, run by the CPU backend's
 * threads. The first operation splits the lists into pieces, once for all layers that read the same lists. */
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
    int threads; /* for which dst has scratch; others leave the work to these */
} oe_attention_params;

typedef struct oe_attention_shape {
    int64_t rows, heads, key_dim, value_dim;
    int64_t n; /* cells in the list */
} oe_attention_shape;

/* Size of oe_attention_plan_op's dst in bytes, for up to kv_heads key heads. */
int64_t oe_attention_plan_size(int64_t rows, int64_t kv_heads);

/* dst i8 [oe_attention_plan_size]. src[0] i32 [2, rows]: each row's part [begin, end) of the list. src[1]: the list i32
 * [n], of which only the length is read. src[2]: phases i32 [rows] or NULL for 0: the place of each row's first cell in
 * its first tile, modulo OE_TILE. A part outside of the list counts as empty. */
void oe_attention_plan_op(struct ggml_tensor *dst, int ith, int nth, void *unused);

/* Size of oe_attention_op's dst in floats: the result [rows][heads][value_dim], then scratch, also of each thread,
 * whose stack may be small (musl's are 128 KB). */
int64_t oe_attention_size(const oe_attention_shape *of, int threads);

/* dst f32 [oe_attention_size]. src: query f32 [key_dim, rows, heads], keys [key_dim, cells, kv_heads], values
 * [value_dim, cells, kv_heads], the result of oe_attention_plan_op, the list i32 [n] of cells, and sinks f32 [heads] or
 * NULL. A row that sees nothing gets 0. Operations with the same plan must run one after the other, because the plan
 * holds their chunk counter. */
void oe_attention_op(struct ggml_tensor *dst, int ith, int nth, void *params);

#ifdef __cplusplus
}
#endif

#endif
