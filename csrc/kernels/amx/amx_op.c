#include "kernels/amx/amx_op.h"

#include "ggml.h"

/* The range of n units that thread ith of nth computes. */
static void range_of(int64_t n, int ith, int nth, int64_t *begin, int64_t *end) {
    *begin = n * ith / nth;
    *end = n * (ith + 1) / nth;
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

void oe_amx_split_op(struct ggml_tensor *dst, int ith, int nth, void *params) {
    const struct ggml_tensor *x = dst->src[0];
    const int64_t k = dst->ne[0], rows = dst->ne[1], apart = k * rows * dst->ne[2];
    const int parts = ((const oe_amx_params *)params)->parts;
    int64_t i, end;
    for (range_of(rows * dst->ne[2], ith, nth, &i, &end); i < end; i++) {
        const int64_t row = i % rows, matrix = i / rows;
        const char *from = (const char *)x->data + row * (int64_t)x->nb[1] + matrix * (int64_t)x->nb[2];
        oe_amx_split((const float *)from, row < x->ne[1] ? x->ne[0] : 0, k, (oe_bf16 *)dst->data + i * k, apart, parts);
    }
}

/* n numbers of a row that is not f32, from number `at` on, as floats. */
static void read_floats(const struct ggml_tensor *x, const char *row, int64_t at, int64_t n, float *to) {
    const char *from = row + at / ggml_blck_size(x->type) * (int64_t)ggml_type_size(x->type);
    ggml_get_type_traits(x->type)->to_float(from, to, n);
}

void oe_amx_pack_op(struct ggml_tensor *dst, int ith, int nth, void *params) {
    const struct ggml_tensor *x = dst->src[0];
    const int64_t k_tiles = dst->ne[1], tiles = k_tiles * dst->ne[2], apart = tiles * OE_AMX_TILE;
    const int64_t column_tiles = oe_amx_padded(x->ne[1], OE_AMX_COLUMNS) / 16;
    const int parts = ((const oe_amx_params *)params)->parts;
    int64_t i, end;
    for (range_of(tiles, ith, nth, &i, &end); i < end; i++) {
        const int64_t at = i % k_tiles * OE_AMX_K, strip = i / k_tiles, column = strip % column_tiles * 16;
        const int64_t n_k = least(x->ne[0] - at, OE_AMX_K), n_columns = least(x->ne[1] - column, 16);
        if (x->type == GGML_TYPE_F32) {
            const int64_t matrix = strip / column_tiles;
            const char *from = (const char *)x->data + column * (int64_t)x->nb[1] + matrix * (int64_t)x->nb[2];
            oe_amx_pack((const float *)from + at, 1, (int64_t)(x->nb[1] / sizeof(float)), n_k, n_columns,
                        (oe_bf16 *)dst->data + i * OE_AMX_TILE, apart, parts);
            continue;
        }
        float block[16][OE_AMX_K];
        for (int64_t c = 0; c < n_columns; c++) {
            const char *row =
                (const char *)x->data + (column + c) * (int64_t)x->nb[1] + strip / column_tiles * (int64_t)x->nb[2];
            read_floats(x, row, at, n_k, block[c]);
        }
        oe_amx_pack(&block[0][0], 1, OE_AMX_K, n_k, n_columns, (oe_bf16 *)dst->data + i * OE_AMX_TILE, apart, parts);
    }
}

void oe_amx_pack_transposed_op(struct ggml_tensor *dst, int ith, int nth, void *params) {
    const struct ggml_tensor *x = dst->src[0];
    const int64_t k_tiles = dst->ne[1], tiles = k_tiles * dst->ne[2], apart = tiles * OE_AMX_TILE;
    const int64_t column_tiles = oe_amx_padded(x->ne[0], OE_AMX_COLUMNS) / 16;
    const int parts = ((const oe_amx_params *)params)->parts;
    int64_t i, end;
    for (range_of(tiles, ith, nth, &i, &end); i < end; i++) {
        const int64_t at = i % k_tiles * OE_AMX_K, strip = i / k_tiles, column = strip % column_tiles * 16;
        const char *from = (const char *)x->data + at * (int64_t)x->nb[1] + strip / column_tiles * (int64_t)x->nb[2];
        oe_amx_pack((const float *)from + column, (int64_t)(x->nb[1] / sizeof(float)), 1,
                    least(x->ne[1] - at, OE_AMX_K), least(x->ne[0] - column, 16),
                    (oe_bf16 *)dst->data + i * OE_AMX_TILE, apart, parts);
    }
}

void oe_amx_product_op(struct ggml_tensor *dst, int ith, int nth, void *params) {
    const oe_amx_params *given = params;
    const struct ggml_tensor *rows = dst->src[0], *tiles = dst->src[1], *bias = dst->src[2];
    const oe_amx_product p = {
        .rows = rows->data,
        .tiles = tiles->data,
        .rows_apart = rows->ne[0] * rows->ne[1],
        .tiles_apart = OE_AMX_TILE * tiles->ne[1] * tiles->ne[2],
        .k = rows->ne[0],
        .n_rows = dst->ne[1],
        .n_columns = dst->ne[0],
        .bias = bias == NULL ? NULL : bias->data,
        .activation = given->activation,
        .parts = given->parts,
        .out = dst->data,
    };
    const int64_t down = (p.n_rows + OE_AMX_BLOCK - 1) / OE_AMX_BLOCK;
    const int64_t across = (p.n_columns + OE_AMX_BLOCK - 1) / OE_AMX_BLOCK;
    int64_t i, end;
    oe_amx_begin();
    for (range_of(down * across, ith, nth, &i, &end); i < end; i++) {
        oe_amx_multiply(&p, i % down * OE_AMX_BLOCK, i / down * OE_AMX_BLOCK);
    }
    oe_amx_end();
}

void oe_amx_attention_op(struct ggml_tensor *dst, int ith, int nth, void *params) {
    const oe_amx_params *given = params;
    const struct ggml_tensor *query = dst->src[0], *keys = dst->src[1], *values = dst->src[2];
    const int64_t heads = dst->ne[1], n_query = dst->ne[2];
    const int64_t query_size = query->ne[0] * query->ne[1];
    const int64_t keys_size = OE_AMX_TILE * keys->ne[1] * keys->ne[2] / heads;
    const int64_t values_size = OE_AMX_TILE * values->ne[1] * values->ne[2] / heads;
    oe_amx_attention a = {
        .query_apart = query_size * heads,
        .keys_apart = keys_size * heads,
        .values_apart = values_size * heads,
        .n_query = n_query,
        .n_keys = given->n_keys,
        .key_dim = given->key_dim,
        .value_dim = dst->ne[0],
        .scale = given->scale,
        .parts = given->parts,
        .out_step = dst->ne[0] * heads,
    };
    const int64_t blocks = (n_query + OE_AMX_ROWS - 1) / OE_AMX_ROWS;
    int64_t i, end;
    oe_amx_begin();
    for (range_of(blocks * heads, ith, nth, &i, &end); i < end; i++) {
        const int64_t head = i / blocks;
        a.query = (const oe_bf16 *)query->data + head * query_size;
        a.keys = (const oe_bf16 *)keys->data + head * keys_size;
        a.values = (const oe_bf16 *)values->data + head * values_size;
        a.out = (float *)dst->data + head * dst->ne[0];
        oe_amx_attend(&a, i % blocks * OE_AMX_ROWS);
    }
    oe_amx_end();
}
