/* AMX products and attention (amx.h) as ggml custom operations: callbacks for ggml_custom_4d, run by the threads of the
 * CPU backend. Only where oe_amx_allowed. */
#ifndef OE_AMX_OP_H
#define OE_AMX_OP_H

#include "kernels/amx/amx.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

typedef struct oe_amx_params {
    int parts;
    oe_amx_activation activation;
    float scale;
    int64_t key_dim, n_keys; /* of attention */
} oe_amx_params;

/* dst bf16 [k padded, rows padded, matrices, parts]: the "rows" of src[0] f32 [k, rows, matrices], rows contiguous. */
void oe_amx_split_op(struct ggml_tensor *dst, int ith, int nth, void *params);

/* dst bf16 [OE_AMX_TILE, k tiles, column tiles * matrices, parts]: the "tiles" of src[0] [k, columns, matrices] of f32,
 * f16, bf16, or a type with blocks of 32; rows contiguous. */
void oe_amx_pack_op(struct ggml_tensor *dst, int ith, int nth, void *params);

/* The same of src[0] f32 [columns, k, matrices]: transposed. */
void oe_amx_pack_transposed_op(struct ggml_tensor *dst, int ith, int nth, void *params);

/* dst f32 [columns, rows]. src: the first operand's rows, the second's tiles, and the bias f32 [columns] if any. */
void oe_amx_product_op(struct ggml_tensor *dst, int ith, int nth, void *params);

/* dst f32 [value_dim, heads, rows]. src: rows of the queries, tiles of the keys, tiles of the transposed values. */
void oe_amx_attention_op(struct ggml_tensor *dst, int ith, int nth, void *params);

#ifdef __cplusplus
}
#endif

#endif
