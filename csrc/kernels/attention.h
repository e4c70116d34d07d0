/* Paged attention: each row reads only the cells in its list, in the order of the list. (The alternative is a mask over
 * all cells, which every row and head has to visit.)
 *
 * A row's list is split into pieces, and these into tiles, whose results are added in order. The split depends only on
 * the length of the list and on the row's phase: its first cell may be any of its first tile, so that rows of a sliding
 * window have the tiles of their neighbours. Keys, unless they are F32, and their queries are rounded to 16 bits, each
 * by its own length, and scores are exact sums of whole numbers (attention_rounded.h). Sums of floats have a fixed
 * order with one rounding for each product and sum (simd16.h). So the bits of a row's result depend on its query and
 * phase and on the contents of its cells, but not on where these lie, on other rows, on the number of threads or on the
 * instruction set.
 *
 * Query heads that share keys and values (GQA), and neighbouring rows of a prompt, are computed together, so a cell is
 * read once for all of them. */
#ifndef OE_ATTENTION_H
#define OE_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Types of keys and values, by ggml's names. attention_cells.h loads them, CMakeLists.txt compiles the kernels of each,
 * and CacheType in config.py offers them. */
#define OE_ATTENTION_EACH_TYPE(X, ...)                                                                                 \
    X(F32, f32, __VA_ARGS__) X(F16, f16, __VA_ARGS__) X(BF16, bf16, __VA_ARGS__) X(Q8_0, q8_0, __VA_ARGS__)            \
    X(Q5_1, q5_1, __VA_ARGS__) X(Q5_0, q5_0, __VA_ARGS__) X(Q4_1, q4_1, __VA_ARGS__)                                   \
    X(IQ4_NL, iq4_nl, __VA_ARGS__) X(Q4_0, q4_0, __VA_ARGS__)
#define OE_ATTENTION_NUMBER(upper, lower, ...) OE_ATTENTION_##upper,

typedef enum oe_attention_type { OE_ATTENTION_EACH_TYPE(OE_ATTENTION_NUMBER, ) OE_ATTENTION_TYPES } oe_attention_type;

typedef enum oe_attention_isa {
    OE_ATTENTION_SCALAR,
    OE_ATTENTION_AVX2,
    OE_ATTENTION_AVX512,
    OE_ATTENTION_NEON,
    OE_ATTENTION_ISAS
} oe_attention_isa;

#define OE_PIECES 16 /* most pieces of one row */
#define OE_QUERIES 8 /* most queries computed together */
#define OE_MOST_QUERIES 192 /* most queries of a piece */

#define OE_ATTENTION_MANY_DIM 256 /* longest keys and values that are unpacked for many queries at once */

/* Keys or values: dim numbers for each head of each cell. */
typedef struct oe_attention_side {
    const char *data;
    size_t cell, head; /* bytes from one to the next */
    int64_t dim;       /* in blocks, a multiple of 32 */
} oe_attention_side;

typedef struct oe_attention_query {
    const float *at; /* [keys.dim] */
    int64_t first, end; /* the cells of the piece that it sees; none where first >= end */
    float *partial;     /* [oe_attention_partial(values.dim)], written */
} oe_attention_query;

/* One key head, some queries that share it, and cells of one list. */
typedef struct oe_attention_piece {
    const oe_attention_query *queries;
    int64_t n_queries;
    oe_attention_side keys, values; /* data is that of the head */
    float scale;
    float cap; /* 0: none; else scores become cap * tanh(score / cap) */
    const int32_t *list; /* of cells */
    int64_t base;        /* index of the piece's first cell; may be below 0 where no query sees that */
    float *scratch;      /* oe_attention_scratch floats, aligned to a cache line */
} oe_attention_piece;

typedef struct oe_attention_kernel {
    void (*attend)(const oe_attention_piece *piece);
    /* Adds the partial result of the next piece to that of the pieces `before` it. */
    void (*add)(float *before, const float *partial, int64_t dim);
    /* The result [dim] of all pieces. `sink`, unless NULL, is a score without a value. */
    void (*finish)(const float *partial, const float *sink, int64_t dim, float *out);
} oe_attention_kernel;

/* Floats in a partial result of one query. */
int64_t oe_attention_partial(int64_t value_dim);

/* Floats that a thread needs for rounded queries and keys, and to unpack a tile of cells for many queries. */
int64_t oe_attention_scratch(int64_t key_dim, int64_t value_dim);

/* Cells whose scores are kept at a time. Sums over the cells of a tile are joined before the next one. */
#define OE_TILE 64

/* A list of n cells has pieces of this size, of which the last may be shorter; and their number, 1 to OE_PIECES. */
int64_t oe_attention_piece_size(int64_t n);
int64_t oe_attention_pieces(int64_t n);

/* The most pieces that a list of up to n cells has. A longer list may have fewer, for they are twice the size. */
int64_t oe_attention_most_pieces(int64_t n);

/* ggml's name. */
const char *oe_attention_type_name(oe_attention_type type);

/* NULL where this build or this CPU lacks the instructions. */
const oe_attention_kernel *oe_attention_kernel_find(oe_attention_type type, oe_attention_isa isa);

#ifdef __cplusplus
}
#endif

#endif
