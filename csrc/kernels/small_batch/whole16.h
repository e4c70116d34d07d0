/* Products of weights of 16 bits as whole numbers: an instruction adds two such products to each lane, and only one of
 * floats. A file includes base/simd16.h and defines before it includes this:
 *
 *      EXPONENT_AT    the lowest bit of a weight's exponent
 *      LEAST, MOST    the least exponent that scales weights, and the one of infinity and NaN
 *      BIAS           exponent of weights in [1, 2)
 *      read_weights   INLINE lanes read_weights(const uint8_t *x): 16 weights
 *
 * OE_WHOLE16 weights of a row share a scale, a power of 2 that brings the largest exponent among them to 14 bits: of
 * F16, whatever is above a sixteenth of the largest stays as it is. As many activations are made whole numbers so that
 * their sizes add up to what fits in 32 bits (whole16, activations.c). So these sums are exact, in any order; they
 * are made floats and added up in order, with one rounding for scale and sum: results are the same bits with every
 * instruction set, and whatever the other rows are. A NaN or an infinity makes its row's results NaN.
 *
 * Up to FEW rows of activations are multiplied with four rows of weights as they lie in the file. For more, OE_LANES
 * rows of weights, one in each lane, are unpacked into a panel, CHUNK numbers of each at a time, which stay in the L1
 * cache while all rows of activations are multiplied with them. Every fourth quad of a row goes to the same of its sums
 * s0 to s3. */
#include "base/pairs16.h"
#include "base/transpose16.h"
#include "kernels/small_batch/activations.h"
#include "kernels/small_batch/fetch.h"
#include "threads/chunk_counter.h"
#include "threads/thread_scratch.h"

#if defined(__AVX512F__) && !defined(OE_SB_SCALAR)
#define TILE 8   /* rows of activations whose sums fit the registers, */
#define ACROSS 2 /* of so many panels */
#define UNROLL(n) PRAGMA(GCC unroll n)
#else
#define TILE 4
#define ACROSS 1
#define UNROLL(n) /* a vector is several registers: plain C would be a megabyte */
#endif
#define PRAGMA(x) _Pragma(#x)
#define STEPS (OE_WHOLE16 / 2)
#define CHUNK_QUADS 4
#define CHUNK (CHUNK_QUADS * OE_WHOLE16)
#define CHUNK_BYTES (2 * CHUNK) /* of a row of weights */
#define FEW 4                   /* rows of activations that are multiplied with weights as they lie (measured) */
#define AT_ONCE 32              /* rows of activations whose sums fit a thread's stack */

/* -- weights ------------------------------------------------------------------------------------------------------- */

/* CHUNK_QUADS quads each of four rows, or of the last one several times. Quad q of row r has number 4 * r + q. */
typedef struct quads {
    const uint8_t *rows[4];
} quads;

/* What quads are multiplied by, and what undoes that. */
typedef struct scales {
    float by[OE_LANES], back[OE_LANES];
} scales;

INLINE void point_at(quads *x, const oe_sb_product *p, int64_t first) {
    for (int64_t r = 0; r < 4; r++) {
        x->rows[r] = p->weights + (size_t)(first + r < p->m ? first + r : p->m - 1) * p->row_bytes;
    }
}

INLINE const uint8_t *quad_at(const quads *x, int i) { return x->rows[i / 4] + (ptrdiff_t)(i % 4) * 2 * OE_WHOLE16; }

INLINE void find_scales(const quads *x, scales *to) {
    pairs most[OE_LANES];
    uint32_t bits[OE_LANES];
UNROLL(16)
    for (int i = 0; i < OE_LANES; i++) {
        const int16_t *const at = (const int16_t *)(const void *)quad_at(x, i);
        most[i] = pairs_larger(pairs_magnitude(pairs_load(at)), pairs_magnitude(pairs_load(at + OE_PAIRED)));
    }
    pairs_largest(most, bits);
    for (int i = 0; i < OE_LANES; i++) {
        const uint32_t at = bits[i] >> EXPONENT_AT, exponent = at < LEAST ? LEAST : at;
        to->by[i] = oe_float_of_bits(at == MOST ? 0 : ((uint32_t)(127 + 13 + BIAS) - exponent) << 23);
        to->back[i] = oe_float_of_bits(at == MOST ? 0x7fc00000u : (exponent + (uint32_t)(127 - 13 - BIAS)) << 23);
    }
    __asm__("" : "+m"(to->by)); /* GCC would take each out of a vector, which is slower than loading it */
}

INLINE void round_quad(const quads *x, const scales *s, int i, pairs to[2]) {
    const uint8_t *const at = quad_at(x, i);
    const lanes by = lanes_set(s->by[i]);
    to[0] = pairs_round(read_weights(at), read_weights(at + 32), by);
    to[1] = pairs_round(read_weights(at + 64), read_weights(at + 96), by);
}

/* The last numbers of rows, `left` of each, and zeros. */
typedef struct rest {
    _Alignas(64) uint8_t at[4][CHUNK_BYTES];
} rest;

INLINE void move_rest(quads *x, int64_t left, rest *to) {
    for (int r = 0; r < 4; r++) {
        memset(to->at[r], 0, sizeof to->at[r]);
        memcpy(to->at[r], x->rows[r], 2 * (size_t)left);
        x->rows[r] = to->at[r];
    }
}

/* What is fetched while CHUNK_QUADS quads of four rows are rounded: as many bytes, or nothing. */
typedef struct ahead {
    const uint8_t *at;
    oe_sb_fetch by;
} ahead;

/* Each step through a group of rows fetches its share of those `further` bytes on, in order. */
INLINE ahead share_of(const oe_sb_product *p, size_t at, size_t further) {
    const size_t all = (size_t)p->m * p->row_bytes, from = at + further, end = from + 4 * CHUNK_BYTES;
    ahead to = {NULL, p->variant.fetch};
    if (to.by != OE_SB_FETCH_NONE) {
        to.at = end <= all ? p->weights + from : p->next && from >= all ? p->next + (from - all) : NULL;
    }
    if (to.by == OE_SB_FETCH_DEEP && end + OE_SB_DEEPER > all) {
        to.by = OE_SB_FETCH_SPREAD;
    }
    return to;
}

#define QUAD_LINES (2 * OE_WHOLE16 / OE_CACHE_LINE)

INLINE void fetch_quad(ahead of, size_t i) {
    if (of.at) {
        fetch_lines(of.at, QUAD_LINES * i, QUAD_LINES * (i + 1), of.by);
    }
}

/* -- few rows of activations --------------------------------------------------------------------------------------- */

#define NEAR_ENOUGH 8192 /* least distance in bytes to fetch */

/* Adds the products of four rows' quads with n rows of activations to the sums, four of each row of weights. */
INLINE void add_quads(const int n, const quads *x, const scales *s, ahead of, const oe_act_whole16 *acts, int64_t rows,
                      const int64_t quads_left, lanes *sum) {
    wholes part[FEW][OE_LANES];
UNROLL(16)
    for (int i = 0; i < OE_LANES; i++) {
        pairs w[2];
        round_quad(x, s, i, w);
        fetch_quad(of, (size_t)i);
UNROLL(4)
        for (int j = 0; j < n; j++) {
            const int16_t *const q = acts[i % 4 < quads_left ? i % 4 * rows + j : j].q;
            part[j][i] = wholes_add_products(wholes_zero(), w[0], pairs_load(q));
            part[j][i] = wholes_add_products(part[j][i], w[1], pairs_load(q + OE_PAIRED));
        }
    }
UNROLL(4)
    for (int j = 0; j < n; j++) {
        float d[4] = {0};
        for (int64_t q = 0; q < 4 && q < quads_left; q++) {
            d[q] = acts[q * rows + j].d;
        }
        const lanes exact = lanes_mul(wholes_sums(part[j]), lanes_load(s->back));
        sum[j] = lanes_fma(exact, lanes_set_4(d), sum[j]);
    }
}

INLINE void multiply_4(const int n, const oe_sb_product *p, int64_t first, size_t further) {
    const int64_t k = p->blocks * OE_LANES;
    const oe_act_whole16 *acts = p->acts;
    lanes sum[FEW];
    quads x, following;
    point_at(&x, p, first);
UNROLL(4)
    for (int j = 0; j < n; j++) {
        sum[j] = lanes_set(0);
    }
    int64_t at = 0;
    scales now, next;
    if (CHUNK <= k) {
        find_scales(&x, &next);
    }
    for (; at + CHUNK <= k; at += CHUNK, acts += CHUNK_QUADS * p->rows, x = following) {
        for (int r = 0; r < 4; r++) {
            following.rows[r] = x.rows[r] + CHUNK_BYTES;
        }
        now = next;
        if (at + 2 * CHUNK <= k) {
            find_scales(&following, &next); /* now, while nothing waits for them */
        }
        add_quads(n, &x, &now, share_of(p, (size_t)first * p->row_bytes + 8 * (size_t)at, further), acts, p->rows,
                  CHUNK_QUADS, sum);
    }
    if (at < k) {
        rest last;
        move_rest(&x, k - at, &last);
        find_scales(&x, &now);
        add_quads(n, &x, &now, (ahead){0}, acts, p->rows, (k - at + OE_WHOLE16 - 1) / OE_WHOLE16, sum);
    }
    for (int j = 0; j < n; j++) {
        float s[OE_LANES];
        lanes_store(s, sum[j]);
        for (int64_t r = 0; r < 4 && first + r < p->m; r++) {
            oe_sb_out(p, j)[first + r] = (s[4 * r] + s[4 * r + 1]) + (s[4 * r + 2] + s[4 * r + 3]);
        }
    }
}

static void oe_multiply_few(const oe_sb_product *p, int64_t first, int64_t last) {
    const size_t step = 4 * p->row_bytes, further = (NEAR_ENOUGH + step - 1) / step * step;
    for (; first < last; first += 4) {
        switch (p->rows) {
        case 1: multiply_4(1, p, first, further); break;
        case 2: multiply_4(2, p, first, further); break;
        case 3: multiply_4(3, p, first, further); break;
        case 4: multiply_4(4, p, first, further); break;
        }
    }
}

/* -- panels -------------------------------------------------------------------------------------------------------- */

/* OE_LANES rows of weights, one in each lane. */
typedef struct panel {
    float pairs[STEPS][OE_LANES]; /* of 16 bits each */
    float scale[OE_LANES];
} panel;

/* Points at CHUNK numbers, or `left`, of four rows from `at` on. */
INLINE void point_at_chunk(quads *x, const oe_sb_product *p, int64_t first, int64_t at, int64_t left, rest *last) {
    point_at(x, p, first);
    for (int r = 0; r < 4; r++) {
        x->rows[r] += 2 * at;
    }
    if (left < CHUNK) {
        move_rest(x, left, last);
    }
}

/* The numbers of rows `first` and following from `at` on, CHUNK or `left` of each. */
static void oe_unpack(const oe_sb_product *p, int64_t first, int64_t at, int64_t left, size_t further, panel *to) {
    _Alignas(64) int16_t whole[OE_LANES][CHUNK];
    quads x, following;
    scales now, next;
    rest last[2];
    point_at_chunk(&following, p, first, at, left, &last[0]);
    find_scales(&following, &next);
    for (int i = 0; i < OE_LANES; i += 4) {
        x = following;
        now = next;
        if (i + 4 < OE_LANES) {
            point_at_chunk(&following, p, first + i + 4, at, left, &last[(i / 4 + 1) % 2]);
            find_scales(&following, &next); /* now, while nothing waits for them */
        }
        const size_t done = (size_t)first * p->row_bytes + 2 * (size_t)(OE_LANES * at + i * CHUNK);
        const ahead of = left >= CHUNK ? share_of(p, done, further) : (ahead){0};
UNROLL(16)
        for (int j = 0; j < OE_LANES; j++) {
            int16_t *const q = whole[i + j / 4] + (ptrdiff_t)(j % 4) * OE_WHOLE16;
            pairs w[2];
            round_quad(&x, &now, j, w);
            fetch_quad(of, (size_t)j);
            pairs_store(q, w[0]);
            pairs_store(q + OE_PAIRED, w[1]);
            to[j % 4].scale[i + j / 4] = now.back[j];
        }
    }
    for (int i = 0; i < CHUNK / OE_PAIRED; i++) {
        lanes y[OE_LANES];
UNROLL(16)
        for (int r = 0; r < OE_LANES; r++) {
            y[r] = pairs_as_lanes(pairs_load(whole[r] + (ptrdiff_t)i * OE_PAIRED));
        }
        lanes_transpose(y, to[i / 2].pairs[i % 2 * OE_LANES], OE_LANES);
    }
}

/* Adds the products of a quad of `across` panels with n rows of activations to their sums. */
INLINE void add_quad(const int across, const int n, const panel *x, const oe_act_whole16 *act, float *sums) {
    wholes sum[ACROSS][TILE];
UNROLL(2)
    for (int a = 0; a < across; a++) {
UNROLL(8)
        for (int j = 0; j < n; j++) {
            sum[a][j] = wholes_zero();
        }
    }
UNROLL(2)
    for (int i = 0; i < STEPS; i++) {
        pairs w[ACROSS];
UNROLL(2)
        for (int a = 0; a < across; a++) {
            w[a] = pairs_load((const int16_t *)(const void *)x[a * CHUNK_QUADS].pairs[i]);
        }
UNROLL(8)
        for (int j = 0; j < n; j++) {
            const pairs y = pairs_set(act[j].q + 2 * i);
UNROLL(2)
            for (int a = 0; a < across; a++) {
                sum[a][j] = wholes_add_products(sum[a][j], w[a], y);
            }
        }
    }
UNROLL(2)
    for (int a = 0; a < across; a++) {
        const lanes scale = lanes_load(x[a * CHUNK_QUADS].scale);
UNROLL(8)
        for (int j = 0; j < n; j++) {
            float *const to = sums + (j * across + a) * OE_LANES;
            const lanes exact = lanes_mul(lanes_from_wholes(sum[a][j]), scale);
            lanes_store(to, lanes_fma(exact, lanes_set(act[j].d), lanes_load(to)));
        }
    }
}

/* A chunk of panels, and the activations that it is multiplied with. */
typedef struct chunk {
    const panel *panels;
    const oe_act_whole16 *acts;
    int64_t quads, rows; /* of activations in all, between two quads */
} chunk;

INLINE void add_chunk(const int across, const int n, const chunk *x, int64_t row, float *sums) {
    for (int64_t q = 0; q < x->quads; q++) {
        add_quad(across, n, x->panels + q, x->acts + q * x->rows + row,
                 sums + (CHUNK_QUADS * row + q * n) * across * OE_LANES);
    }
}

#define ADD_ROWS(across, n)                                                                                            \
    case (across) * 16 + (n): add_chunk(across, n, x, row, sums); break
#define ADD_FOUR_ROWS(across, n)                                                                                       \
    ADD_ROWS(across, n);                                                                                               \
    ADD_ROWS(across, n + 1);                                                                                           \
    ADD_ROWS(across, n + 2);                                                                                           \
    ADD_ROWS(across, n + 3)

NOINLINE void oe_add_rows(int across, int64_t n, const chunk *x, int64_t row, float *sums) {
    switch (across * 16 + n) {
        ADD_FOUR_ROWS(1, 1);
#if TILE > 4
        ADD_FOUR_ROWS(1, 5);
#endif
#if ACROSS > 1
        ADD_FOUR_ROWS(ACROSS, 1);
        ADD_FOUR_ROWS(ACROSS, 5);
#endif
    }
}

/* All rows in tiles of equal size. */
#define EACH_TILE(rows, from, n, call)                                                                                 \
    for (int64_t from = 0, tiles = ((rows) + TILE - 1) / TILE, n; tiles > 0; tiles--, from += n) {                     \
        n = ((rows)-from + tiles - 1) / tiles;                                                                         \
        call;                                                                                                          \
    }

/* (s0 + s1) + (s2 + s3) of n rows of activations and `across` columns. */
static void oe_store(const oe_sb_product *p, int across, int64_t first, int64_t row, int64_t n, const float *sums) {
    const int64_t far = n * across * OE_LANES;
    for (int64_t i = 0; i < n; i++) {
        float *const out = oe_sb_out(p, row + i) + first;
        for (int64_t at = 0; at < across * OE_LANES; at += OE_LANES, sums += OE_LANES) {
            const lanes low = lanes_add(lanes_load(sums), lanes_load(sums + far));
            const lanes high = lanes_add(lanes_load(sums + 2 * far), lanes_load(sums + 3 * far));
            float total[OE_LANES];
            lanes_store(total, lanes_add(low, high));
            const int64_t left = p->m - first - at;
            memcpy(out + at, total, (size_t)(left < OE_LANES ? left : OE_LANES) * sizeof *total);
        }
    }
}

/* `across` panels' rows of weights with some rows of activations, for which there are sums. */
static void oe_multiply_columns(const oe_sb_product *p, int across, int64_t first, int64_t row, int64_t rows,
                                float *sums) {
    _Alignas(64) panel panels[ACROSS][CHUNK_QUADS];
    const int64_t k = p->blocks * OE_LANES;
    const size_t further = (size_t)across * OE_LANES * p->row_bytes;
    memset(sums, 0, (size_t)(CHUNK_QUADS * rows * across) * OE_LANES * sizeof *sums);
    for (int64_t at = 0; at < k; at += CHUNK) {
        const int64_t left = k - at, quads = left < CHUNK ? (left + OE_WHOLE16 - 1) / OE_WHOLE16 : CHUNK_QUADS;
        for (int a = 0; a < across; a++) {
            oe_unpack(p, first + a * OE_LANES, at, left, further, panels[a]);
        }
        const oe_act_whole16 *const acts = (const oe_act_whole16 *)p->acts + at / OE_WHOLE16 * p->rows + row;
        const chunk x = {panels[0], acts, quads, p->rows};
        EACH_TILE(rows, from, n, oe_add_rows(across, n, &x, from, sums));
    }
    EACH_TILE(rows, from, n, oe_store(p, across, first, row + from, n, sums + CHUNK_QUADS * from * across * OE_LANES));
}

static void oe_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    _Alignas(64) float few[CHUNK_QUADS * AT_ONCE * ACROSS * OE_LANES];
    if (p->rows <= FEW) {
        oe_multiply_few(p, first, last);
        return;
    }
    const size_t floats = (size_t)(CHUNK_QUADS * p->rows * ACROSS) * OE_LANES;
    float *const many = p->rows > AT_ONCE ? oe_thread_scratch(floats * sizeof *many) : NULL;
    const int64_t at_once = many ? p->rows : AT_ONCE;
    while (first < last) {
        const int across = p->rows > TILE && first + OE_LANES < last ? ACROSS : 1;
        for (int64_t row = 0; row < p->rows; row += at_once) {
            const int64_t rows = p->rows - row < at_once ? p->rows - row : at_once;
            oe_multiply_columns(p, across, first, row, rows, many ? many : few);
        }
        first += across * OE_LANES;
    }
}

#define OE_SB_DEFINE_16(type)                                                                                          \
    const oe_sb_kernel OE_SB_KERNEL(type) = {OE_LANES, sizeof(oe_act_whole16) / OE_QUAD, OE_SB_ACTS(whole16),          \
                                             &OE_SB_ACTS(fused), oe_multiply, NULL, NULL, false, 0, false, 0, 0}
