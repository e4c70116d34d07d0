/* Products and attention of many rows with AMX (Intel's tiles of bfloat16), for vision towers: thousands of patches at
 * once, where ggml's kernels compute with f32 vectors.
 *
 * A float is the sum of `parts` numbers of bfloat16, 8 bits of mantissa each. With two parts, a product is the sum of
 * three (high * high, high * low, low * high), and is off by about 2^-16 of its operands, as float32 in practice; with
 * one part it is what bfloat16 gives. Sums are float32.
 *
 * Operands have two forms. "Rows" is [part][row][column] with columns padded to OE_AMX_K and rows to OE_AMX_ROWS.
 * "Tiles" is [part][columns / 16][k / 32][16][16][2], in the order of AMX's second operand: pairs along k, and 16
 * columns beside each other; columns are padded to OE_AMX_COLUMNS, k to OE_AMX_K. What is padded holds 0. */
#ifndef OE_AMX_H
#define OE_AMX_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define OE_AMX_K 32
#define OE_AMX_ROWS 32
#define OE_AMX_COLUMNS 32
#define OE_AMX_TILE 512 /* numbers in a tile */

typedef uint16_t oe_bf16;

typedef enum oe_amx_activation { OE_AMX_NONE, OE_AMX_GELU, OE_AMX_QUICK_GELU } oe_amx_activation;

static inline int64_t oe_amx_padded(int64_t n, int64_t unit) {
    return (n + unit - 1) / unit * unit;
}

/* Whether the CPU has AMX with bfloat16, and the system lets this process use it. Asks the system once. From a yes on,
 * Linux refuses this process signal stacks (sigaltstack) too small for tiles, such as 8 KB, which SIGSTKSZ used to be.
 * Where a thread has such a stack already, the answer is no, and other kernels compute. */
bool oe_amx_allowed(void);

/* The same for products of signed bytes. */
bool oe_amx_int8_allowed(void);

/* Begin and end the use of tiles in this thread. */
void oe_amx_begin(void);
void oe_amx_end(void);

/* n numbers as parts, `apart` numbers from one part to the next; up to `padded` 0 follows. */
void oe_amx_split(const float *x, int64_t n, int64_t padded, oe_bf16 *to, int64_t apart, int parts);

/* One tile, and those of its other parts, `apart` numbers from one to the next. Number (k, c) of the tile is
 * x[k * k_step + c * column_step]; those from n_k and n_columns on are 0. */
void oe_amx_pack(const float *x, int64_t k_step, int64_t column_step, int64_t n_k, int64_t n_columns, oe_bf16 *to,
                 int64_t apart, int parts);

typedef struct oe_amx_product {
    const oe_bf16 *rows;  /* "rows" of the first operand */
    const oe_bf16 *tiles; /* "tiles" of the second */
    int64_t rows_apart, tiles_apart; /* numbers from one part to the next */
    int64_t k;                       /* padded */
    int64_t n_rows, n_columns;       /* of the result, not padded */
    const float *bias;               /* [n_columns] or NULL */
    oe_amx_activation activation;
    int parts;
    float *out; /* [n_rows][n_columns] */
} oe_amx_product;

#define OE_AMX_BLOCK 128

/* OE_AMX_BLOCK rows from `row` on, and as many columns from `column` on, both multiples of it. */
void oe_amx_multiply(const oe_amx_product *p, int64_t row, int64_t column);

typedef struct oe_amx_attention {
    const oe_bf16 *query;  /* "rows" of one head */
    const oe_bf16 *keys;   /* "tiles" of one head: k is the head's size, columns are keys */
    const oe_bf16 *values; /* "tiles" of one head: k is the keys, columns are the head's size */
    int64_t query_apart, keys_apart, values_apart;
    int64_t n_query, n_keys, key_dim, value_dim; /* not padded */
    float scale;
    int parts;
    float *out; /* row i begins at out + i * out_step */
    int64_t out_step;
} oe_amx_attention;

#define OE_AMX_LARGEST_HEAD 256

/* softmax(scale q k) v for 32 rows from `row` on, a multiple of 32. The head's size is OE_AMX_LARGEST_HEAD at most. */
void oe_amx_attend(const oe_amx_attention *a, int64_t row);

#ifdef __cplusplus
}
#endif

#endif
