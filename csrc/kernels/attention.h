/* Attention of few rows over cells of a cache: each row reads the cells that are listed for it, in the order of the
 * list, and no others. (The other way is a mask over all cells, which every row and head goes through.)
 *
 * A row's list is cut into pieces, whose results are joined in order. How, is decided by the length of the list alone,
 * and sums are made in a fixed order with one rounding for each product and sum (simd16.h): what a row gives depends on
 * its query and on what its cells hold, bit by bit, and not on where they lie, on other rows, on the number of threads
 * or on the instruction set.
 *
 * Query heads that share keys and values (GQA) are taken together: a cell's keys and values are read once for them. */
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

#define OE_PIECES 16 /* of one row at most */

/* Keys, or values: dim numbers for each head of each cell. */
typedef struct oe_attention_side {
    const char *data;
    size_t cell, head; /* bytes from one to the next */
    int64_t dim;       /* of Q8_0 a multiple of 32 */
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
    /* out[dim] of one query head from its parts in n <= OE_PIECES pieces, `stride` floats apart. `sink`, unless NULL,
     * is a score that has no value. */
    void (*join)(const float *partial, int64_t stride, int64_t n, const float *sink, int64_t dim, float *out);
} oe_attention_kernel;

/* Floats that a piece leaves for each query head. */
int64_t oe_attention_partial(int64_t value_dim);

/* How many pieces a list of n cells has, 1 to OE_PIECES, and the first cell of the i-th; that of the last + 1 is n. */
int64_t oe_attention_pieces(int64_t n);
int64_t oe_attention_piece_begin(int64_t n, int64_t i);

/* NULL where this build or this CPU lacks the instructions. */
const oe_attention_kernel *oe_attention_kernel_find(oe_attention_type type, oe_attention_isa isa);

/* -- shared by the kernels' files ---------------------------------------------------------------------------------- */

/* The last two on x86-64 only. */
extern const oe_attention_kernel oe_attention_scalar[OE_ATTENTION_TYPES];
extern const oe_attention_kernel oe_attention_avx2[OE_ATTENTION_TYPES];
extern const oe_attention_kernel oe_attention_avx512[OE_ATTENTION_TYPES];

#ifdef __cplusplus
}
#endif

#endif
