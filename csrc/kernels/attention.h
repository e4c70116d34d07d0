/* Paged attention of few rows: each row reads only the cells in its list, in the order of the list. (The alternative
 * is a mask over all cells, which every row and head has to visit.)
 *
 * A row's list is split into pieces, whose results are joined in order. The split depends only on the length of the
 * list, and sums have a fixed order with one rounding for each product and sum (simd16.h). So the bits of a row's
 * result depend on its query and on the contents of its cells, but not on where these lie, on other rows, on the
 * number of threads or on the instruction set.
 *
 * Query heads that share keys and values (GQA) are computed together, so a cell is read once for all of them. */
#ifndef OE_ATTENTION_H
#define OE_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum oe_attention_type {
    OE_ATTENTION_F32,
    OE_ATTENTION_F16,
    OE_ATTENTION_BF16,
    OE_ATTENTION_Q8_0,
    OE_ATTENTION_TYPES
} oe_attention_type;

typedef enum oe_attention_isa {
    OE_ATTENTION_SCALAR,
    OE_ATTENTION_AVX2,
    OE_ATTENTION_AVX512,
    OE_ATTENTION_ISAS
} oe_attention_isa;

#define OE_PIECES 16 /* most pieces of one row */

/* Keys or values: dim numbers for each head of each cell. */
typedef struct oe_attention_side {
    const char *data;
    size_t cell, head; /* bytes from one to the next */
    int64_t dim;       /* for Q8_0 a multiple of 32 */
} oe_attention_side;

/* One key head, the query heads that share it, and some cells of one row's list. */
typedef struct oe_attention_piece {
    const char *query; /* f32 [group][keys.dim] */
    size_t query_head; /* bytes from one to the next */
    int64_t group;
    oe_attention_side keys, values; /* data is that of the head */
    float scale;
    float cap; /* 0: none; else scores become cap * tanh(score / cap) */
    const int32_t *cells;
    int64_t n;
    float *partial; /* [group][oe_attention_partial(values.dim)], written */
} oe_attention_piece;

typedef struct oe_attention_kernel {
    void (*attend)(const oe_attention_piece *piece);
    /* Joins the partial results of one query head in n <= OE_PIECES pieces, `stride` floats apart, to out[dim]. `sink`,
     * unless NULL, is a score without a value. */
    void (*join)(const float *partial, int64_t stride, int64_t n, const float *sink, int64_t dim, float *out);
} oe_attention_kernel;

/* Floats in a piece's partial result for one query head. */
int64_t oe_attention_partial(int64_t value_dim);

/* The number of pieces of a list of n cells, 1 to OE_PIECES; and the first cell of piece i, n for i = that number. */
int64_t oe_attention_pieces(int64_t n);
int64_t oe_attention_piece_begin(int64_t n, int64_t i);

/* NULL where this build or this CPU lacks the instructions. */
const oe_attention_kernel *oe_attention_kernel_find(oe_attention_type type, oe_attention_isa isa);

/* -- shared by the kernels' files ---------------------------------------------------------------------------------- */

/* The last two exist on x86-64 only. */
extern const oe_attention_kernel oe_attention_scalar[OE_ATTENTION_TYPES];
extern const oe_attention_kernel oe_attention_avx2[OE_ATTENTION_TYPES];
extern const oe_attention_kernel oe_attention_avx512[OE_ATTENTION_TYPES];

#ifdef __cplusplus
}
#endif

#endif
