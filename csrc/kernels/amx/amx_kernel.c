#include "kernels/amx/amx.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "kernels/amx/tile_config.h"
#include "kernels/exp_f32.h"

/* -- bfloat16 ------------------------------------------------------------------------------------------------------ */

/* The upper half of the nearest bfloat16, ties to even; NaN stays NaN. */
static inline uint32_t rounded(float x) {
    const uint32_t bits = oe_float_bits(x);
    const uint32_t near = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 64u : near;
}

/* 16 numbers, of which `there` are to be read and written, as their parts. */
static inline void split16(const float *x, __mmask16 there, oe_bf16 *to, int64_t apart, int parts) {
    const __m512 value = _mm512_maskz_loadu_ps(there, x);
    const __m256i high = (__m256i)_mm512_cvtneps_pbh(value);
    _mm256_mask_storeu_epi16(to, there, high);
    if (parts > 1) {
        const __m512 near = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(high), 16));
        _mm256_mask_storeu_epi16(to + apart, there, (__m256i)_mm512_cvtneps_pbh(_mm512_sub_ps(value, near)));
    }
}

void oe_amx_split(const float *x, int64_t n, int64_t padded, oe_bf16 *to, int64_t apart, int parts) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) {
        split16(x + i, 0xffff, to + i, apart, parts);
    }
    if (i < n) {
        split16(x + i, (__mmask16)((1u << (n - i)) - 1), to + i, apart, parts);
    }
    for (int part = 0; part < parts; part++) {
        memset(to + part * apart + n, 0, (size_t)(padded - n) * sizeof(oe_bf16));
    }
}

void oe_amx_pack(const float *x, int64_t k_step, int64_t column_step, int64_t n_k, int64_t n_columns, oe_bf16 *to,
                 int64_t apart, int parts) {
    if (n_k < 32 || n_columns < 16) {
        memset(to, 0, OE_AMX_TILE * sizeof(oe_bf16));
        memset(to + (parts - 1) * apart, 0, OE_AMX_TILE * sizeof(oe_bf16));
    }
    n_k = n_k < 32 ? n_k : 32;
    n_columns = n_columns < 16 ? n_columns : 16;
    for (int64_t c = 0; c < n_columns; c++) {
        for (int64_t k = 0; k < n_k; k++) {
            const float value = x[k * k_step + c * column_step];
            const uint32_t high = rounded(value);
            const int64_t at = k / 2 * 32 + c * 2 + k % 2;
            to[at] = (oe_bf16)high;
            if (parts > 1) {
                to[apart + at] = (oe_bf16)rounded(value - oe_float_of_bits(high << 16));
            }
        }
    }
}

/* -- tiles --------------------------------------------------------------------------------------------------------- */

void oe_amx_begin(void) {
    static const oe_tile_config config = {
        .palette = 1,
        .bytes = {64, 64, 64, 64, 64, 64, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, 16, 16},
    };
    _tile_loadconfig(&config);
}

void oe_amx_end(void) {
    _tile_release();
}

/* 32 rows of 32 numbers into tiles 4 and 5. */
static inline void load_rows(const oe_bf16 *from, int64_t step) {
    const size_t stride = (size_t)step * sizeof(oe_bf16);
    _tile_loadd(4, from, stride);
    _tile_loadd(5, from + 16 * step, stride);
}

/* Two tiles of columns, which lie `beside` numbers apart, into tiles 6 and 7. */
static inline void load_columns(const oe_bf16 *from, int64_t beside) {
    _tile_loadd(6, from, 64);
    _tile_loadd(7, from + beside, 64);
}

static inline void multiply(void) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
}

/* Tiles 0 to 3 += 32 rows times 32 columns. */
static inline void accumulate(const oe_bf16 *a, int64_t a_step, int64_t a_apart, const oe_bf16 *b, int64_t b_apart,
                              int64_t beside, int64_t k_tiles, int parts) {
    for (int64_t t = 0; t < k_tiles; t++, a += OE_AMX_K, b += OE_AMX_TILE) {
        load_rows(a, a_step);
        load_columns(b, beside);
        multiply();
        if (parts == 1) {
            continue;
        }
        load_rows(a + a_apart, a_step);
        multiply();
        load_rows(a, a_step);
        load_columns(b + b_apart, beside);
        multiply();
    }
}

static inline void clear(void) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
}

/* Tiles 0 to 3 as 32 rows of 32 numbers, `step` numbers from one to the next. */
static inline void store(float *to, int64_t step) {
    const size_t stride = (size_t)step * sizeof(float);
    _tile_stored(0, to, stride);
    _tile_stored(1, to + 16, stride);
    _tile_stored(2, to + 16 * step, stride);
    _tile_stored(3, to + 16 * step + 16, stride);
}

static inline void load(const float *from, int64_t step) {
    const size_t stride = (size_t)step * sizeof(float);
    _tile_loadd(0, from, stride);
    _tile_loadd(1, from + 16, stride);
    _tile_loadd(2, from + 16 * step, stride);
    _tile_loadd(3, from + 16 * step + 16, stride);
}

/* -- functions of numbers ------------------------------------------------------------------------------------------ */

/* Above 87 as for 87. */
static inline float exp_of(float y) {
    return oe_exp_f32(y > 87.0f ? 87.0f : y);
}

/* x * sigmoid(z) */
static inline float gated(float x, float z) {
    return x / (1.0f + exp_of(-z));
}

static void finish(const float *from, const float *bias, oe_amx_activation activation, int64_t n, float *to) {
    float y[OE_AMX_BLOCK];
    for (int64_t i = 0; i < n; i++) {
        y[i] = from[i] + (bias == NULL ? 0.0f : bias[i]);
    }
    if (activation == OE_AMX_GELU) { /* the tanh form: x * sigmoid(sqrt(8 / pi) * (x + 0.044715 x^3)) */
        for (int64_t i = 0; i < n; i++) {
            y[i] = gated(y[i], y[i] * (1.59576912f + 0.0713548163f * y[i] * y[i]));
        }
    } else if (activation == OE_AMX_QUICK_GELU) {
        for (int64_t i = 0; i < n; i++) {
            y[i] = gated(y[i], 1.702f * y[i]);
        }
    }
    memcpy(to, y, (size_t)n * sizeof(float));
}

/* -- products ------------------------------------------------------------------------------------------------------ */

/* Numbers along k at a time. 32 rows of as many stay in the L1 cache, and a block's columns of as many in L2; tiles are
 * loaded faster than from there, or computing waits for them. */
#define K_BLOCK 192

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

void oe_amx_multiply(const oe_amx_product *p, int64_t row, int64_t column) {
    float result[OE_AMX_BLOCK][OE_AMX_BLOCK] __attribute__((aligned(64)));
    const int64_t rows = least(p->n_rows - row, OE_AMX_BLOCK), columns = least(p->n_columns - column, OE_AMX_BLOCK);
    const int64_t beside = p->k / OE_AMX_K * OE_AMX_TILE;
    for (int64_t k = 0; k < p->k; k += K_BLOCK) {
        const int64_t k_tiles = least(p->k - k, K_BLOCK) / OE_AMX_K;
        for (int64_t r = 0; r < rows; r += 32) {
            for (int64_t c = 0; c < columns; c += 32) {
                if (k == 0) {
                    clear();
                } else {
                    load(&result[r][c], OE_AMX_BLOCK);
                }
                accumulate(p->rows + (row + r) * p->k + k, p->k, p->rows_apart,
                           p->tiles + (column + c) / 16 * beside + k / OE_AMX_K * OE_AMX_TILE, p->tiles_apart, beside,
                           k_tiles, p->parts);
                store(&result[r][c], OE_AMX_BLOCK);
            }
        }
    }
    const float *bias = p->bias == NULL ? NULL : p->bias + column;
    for (int64_t r = 0; r < rows; r++) {
        finish(result[r], bias, p->activation, columns, p->out + (row + r) * p->n_columns + column);
    }
}

/* -- attention ----------------------------------------------------------------------------------------------------- */

#define KEYS 256 /* at a time, so that scores and weights stay in the L1 and L2 cache */

typedef struct rows_state {
    float scores[32][KEYS] __attribute__((aligned(64)));
    oe_bf16 weights[2][32][KEYS] __attribute__((aligned(64)));
    float sums[32][OE_AMX_LARGEST_HEAD] __attribute__((aligned(64)));
    float highest[32], total[32];
} rows_state;

static float highest_of(const float *x, int64_t n) {
    float found[16];
    for (int i = 0; i < 16; i++) {
        found[i] = x[i];
    }
    for (int64_t j = 16; j < n; j += 16) {
        for (int i = 0; i < 16; i++) {
            found[i] = found[i] > x[j + i] ? found[i] : x[j + i];
        }
    }
    for (int i = 1; i < 16; i++) {
        found[0] = found[0] > found[i] ? found[0] : found[i];
    }
    return found[0];
}

/* x[i] = exp(x[i] * scale - highest); their sum. n is a multiple of 16. */
static float exp_all(float *x, int64_t n, float scale, float highest) {
    float sums[16] = {0};
    for (int64_t j = 0; j < n; j += 16) {
        for (int i = 0; i < 16; i++) {
            const float y = exp_of(x[j + i] * scale - highest);
            x[j + i] = y;
            sums[i] += y;
        }
    }
    float sum = 0;
    for (int i = 0; i < 16; i++) {
        sum += sums[i];
    }
    return sum;
}

/* The scores of `padded` keys, of which `n` are there -> weights, with the sums before scaled to the new maximum. */
static void weigh(rows_state *s, int64_t n, int64_t padded, float scale, int64_t value_dim, int parts) {
    for (int r = 0; r < 32; r++) {
        float *row = s->scores[r];
        for (int64_t i = n; i < padded; i++) {
            row[i] = -INFINITY;
        }
        const float found = highest_of(row, padded) * scale;
        if (found > s->highest[r]) {
            const float factor = exp_of(s->highest[r] - found);
            s->highest[r] = found;
            s->total[r] *= factor;
            for (int64_t i = 0; i < value_dim; i++) {
                s->sums[r][i] *= factor;
            }
        }
        const float total = exp_all(row, padded, scale, s->highest[r]);
        for (int64_t i = n; i < padded; i++) {
            row[i] = 0.0f;
        }
        s->total[r] += total;
        oe_amx_split(row, padded, padded, s->weights[0][r], sizeof(s->weights[0]) / sizeof(oe_bf16), parts);
    }
}

void oe_amx_attend(const oe_amx_attention *a, int64_t row) {
    rows_state s;
    const int64_t dim = oe_amx_padded(a->key_dim, OE_AMX_K), dim_tiles = dim / OE_AMX_K;
    const int64_t value_dim = oe_amx_padded(a->value_dim, OE_AMX_COLUMNS);
    const int64_t all = oe_amx_padded(a->n_keys, OE_AMX_COLUMNS), key_tiles = all / OE_AMX_K;
    for (int r = 0; r < 32; r++) {
        s.highest[r] = -INFINITY;
        s.total[r] = 0;
        memset(s.sums[r], 0, (size_t)value_dim * sizeof(float));
    }
    for (int64_t begin = 0; begin < all; begin += KEYS) {
        const int64_t padded = all - begin < KEYS ? all - begin : KEYS;
        const int64_t n = a->n_keys - begin < KEYS ? a->n_keys - begin : KEYS;
        for (int64_t key = 0; key < padded; key += 32) {
            clear();
            accumulate(a->query + row * dim, dim, a->query_apart,
                       a->keys + (begin + key) / 16 * dim_tiles * OE_AMX_TILE, a->keys_apart, dim_tiles * OE_AMX_TILE,
                       dim_tiles, a->parts);
            store(&s.scores[0][key], KEYS);
        }
        weigh(&s, n, padded, a->scale, value_dim, a->parts);
        for (int64_t i = 0; i < value_dim; i += 32) {
            load(&s.sums[0][i], OE_AMX_LARGEST_HEAD);
            accumulate(s.weights[0][0], KEYS, sizeof(s.weights[0]) / sizeof(oe_bf16),
                       a->values + (i / 16 * key_tiles + begin / OE_AMX_K) * OE_AMX_TILE, a->values_apart,
                       key_tiles * OE_AMX_TILE, padded / OE_AMX_K, a->parts);
            store(&s.sums[0][i], OE_AMX_LARGEST_HEAD);
        }
    }
    const int64_t rows = a->n_query - row < 32 ? a->n_query - row : 32;
    for (int64_t r = 0; r < rows; r++) {
        float *out = a->out + (row + r) * a->out_step;
        for (int64_t i = 0; i < a->value_dim; i++) {
            out[i] = s.sums[r][i] / s.total[r];
        }
    }
}
