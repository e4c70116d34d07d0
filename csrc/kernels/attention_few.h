/* A few queries and a tile of cells: keys and values are converted in registers, for up to 8 queries at a time
 * (attention.h). Included by files that are compiled once for each instruction set. */
#ifndef OE_ATTENTION_FEW_H
#define OE_ATTENTION_FEW_H

#include "kernels/attention_rounded.h"

#define HEADS OE_QUERIES

/* -- scores -------------------------------------------------------------------------------------------------------- */

/* Adds the products of 16 numbers, for some cells and some heads. */
INLINE void add_products(const int type, const int heads, const int cells, const float *const *query,
                         const char *const *key, int64_t i, int64_t count, lanes *sum) {
    lanes q[HEADS];
#pragma GCC unroll 8
    for (int h = 0; h < heads; h++) {
        q[h] = load(OE_ATTENTION_F32, (const char *)query[h], i, count);
    }
#pragma GCC unroll 16
    for (int c = 0; c < cells; c++) {
        const lanes k = load(type, key[c], i, count);
#pragma GCC unroll 8
        for (int h = 0; h < heads; h++) {
            sum[h * cells + c] = lanes_fma(q[h], k, sum[h * cells + c]);
        }
    }
}

/* score[h][c] = query h times the key of cell c, of the cells [low, high) of a tile, all of them floats. It takes
 * SUMS / `heads` cells at a time. `cell` is that of `low`. */
INLINE void score_cells(const int type, const int heads, const oe_attention_piece *p, const oe_attention_query *queries,
                        const int32_t *cell, int64_t low, int64_t high, float (*score)[TILE]) {
    enum { MOST = SUMS };
    const float *query[HEADS];
    for (int h = 0; h < heads; h++) {
        query[h] = queries[h].at;
    }
    const int cells = SUMS / heads;
    for (int64_t first = low / SUMS * SUMS; first < high; first += cells) {
        const char *key[MOST];
        lanes sum[MOST];
        float got[MOST];
#pragma GCC unroll 16
        for (int c = 0; c < cells; c++) {
            /* Padding repeats the nearest cell; unused. */
            const int64_t i = first + c < low ? 0 : (first + c < high ? first + c : high - 1) - low;
            key[c] = cell_of(&p->keys, cell[i]);
            prefetch(&p->values, cell[i]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) {
            sum[i] = lanes_set(0.0f);
        }
        const int64_t whole = p->keys.dim / OE_LANES * OE_LANES;
        for (int64_t i = 0; i < whole; i += OE_LANES) {
            add_products(type, heads, cells, query, key, i, 0, sum);
        }
        if (whole < p->keys.dim) {
            add_products(type, heads, cells, query, key, whole, p->keys.dim - whole, sum);
        }
        sum_up(sum, got);
#pragma GCC unroll 8
        for (int h = 0; h < heads; h++) {
            memcpy(&score[h][first], got + h * cells, (size_t)cells * sizeof *got);
        }
    }
}

/* to[i] = the sum of all numbers of sum[i]. */
INLINE void sum_up_wholes(const wholes *sum, float *to) {
#if defined(__AVX512F__)
    lanes_store(to, wholes_sums(sum));
#else
    for (int i = 0; i < SUMS; i++) {
        to[i] = (float)wholes_sum(sum[i]);
    }
#endif
}

/* The same of rounded queries, of which `query` is the first, and keys. */
INLINE void score_rounded(const int heads, const rounded *r, int64_t query, int64_t low, int64_t high,
                          float (*score)[TILE]) {
    const int cells = SUMS / heads;
    for (int64_t first = low / SUMS * SUMS; first < high; first += cells) {
        const int16_t *key[SUMS];
        wholes sum[SUMS];
        float got[SUMS];
#pragma GCC unroll 16
        for (int c = 0; c < cells; c++) {
            const int64_t i = first + c < low ? low : first + c < high ? first + c : high - 1;
            key[c] = r->keys + i * r->stride;
        }
#pragma GCC unroll 16
        for (int i = 0; i < SUMS; i++) {
            sum[i] = wholes_zero();
        }
        for (int64_t d = 0; d < r->stride; d += OE_PAIRED) {
            pairs q[HEADS];
#pragma GCC unroll 8
            for (int h = 0; h < heads; h++) {
                q[h] = pairs_load(r->queries + (query + h) * r->stride + d);
            }
#pragma GCC unroll 16
            for (int c = 0; c < cells; c++) {
                const pairs k = pairs_load(key[c] + d);
#pragma GCC unroll 8
                for (int h = 0; h < heads; h++) {
                    sum[h * cells + c] = wholes_add_products(sum[h * cells + c], q[h], k);
                }
            }
        }
        sum_up_wholes(sum, got);
#pragma GCC unroll 8
        for (int h = 0; h < heads; h++) {
            memcpy(&score[h][first], got + h * cells, (size_t)cells * sizeof *got);
        }
    }
    for (int64_t c = low / OE_LANES * OE_LANES; c < high; c += OE_LANES) {
        for (int h = 0; h < heads; h++) {
            lanes_store(&score[h][c], lanes_mul(lanes_load(&score[h][c]), lanes_load(r->key_factor + c)));
        }
    }
}

/* -- values -------------------------------------------------------------------------------------------------------- */

/* Adds `vectors` * 16 numbers of the values from `from` on; with a `count` above 0, only so many. The weights
 * of a query lie TILE behind those of the one before. */
INLINE void add_values(const int type, const int heads, const int vectors, const oe_attention_piece *p,
                       const oe_attention_query *query, const int32_t *cell, int64_t n, const float *weight,
                       const float *shrink, int64_t from, int64_t count) {
    enum { MOST = SUMS };
    lanes sum[MOST];
#pragma GCC unroll 16
    for (int i = 0; i < heads * vectors; i++) {
        const float *at = query[i / vectors].partial + VALUES_AT + from + i % vectors * OE_LANES;
        sum[i] = lanes_mul(lanes_load(at), lanes_set(shrink[i / vectors]));
    }
    for (int64_t c = 0; c < n; c++) {
        const char *value = cell_of(&p->values, cell[c]);
#pragma GCC unroll 16
        for (int j = 0; j < vectors; j++) {
            const lanes v = load(type, value, from + j * OE_LANES, count);
#pragma GCC unroll 8
            for (int h = 0; h < heads; h++) {
                sum[h * vectors + j] = lanes_fma(lanes_set(weight[h * TILE + c]), v, sum[h * vectors + j]);
            }
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < heads * vectors; i++) {
        lanes_store(query[i / vectors].partial + VALUES_AT + from + i % vectors * OE_LANES, sum[i]);
    }
}

INLINE void mix_values(const int type, const int heads, const oe_attention_piece *p, const oe_attention_query *query,
                       const int32_t *cell, int64_t n, const float *weight, const float *shrink) {
    const int most = SUMS / heads < 4 ? SUMS / heads : 4;
    int64_t from = 0;
    for (; from + most * OE_LANES <= p->values.dim; from += most * OE_LANES) {
        add_values(type, heads, most, p, query, cell, n, weight, shrink, from, 0);
    }
    for (; from + OE_LANES <= p->values.dim; from += OE_LANES) {
        add_values(type, heads, 1, p, query, cell, n, weight, shrink, from, 0);
    }
    if (from < p->values.dim) {
        add_values(type, heads, 1, p, query, cell, n, weight, shrink, from, p->values.dim - from);
    }
}

/* -- a piece ------------------------------------------------------------------------------------------------------- */

/* Some queries in one tile of cells. All see the cells [begin, end), which may be none. */
typedef struct tile {
    const int32_t *cell; /* that of `low` */
    int64_t low, high;   /* cells that any query sees */
    int64_t begin, end;
    scores s;
} tile;

INLINE void weigh_some(const int type, const int heads, const oe_attention_piece *p, const oe_attention_query *query,
                       tile *t, int at, const rounded *r) {
    const int64_t first = query - p->queries;
    if (is_rounded(type)) {
        score_rounded(heads, r, first + at, t->low, t->high, t->s.score + at);
    } else {
        score_cells(type, heads, p, query + at, t->cell, t->low, t->high, t->s.score + at);
    }
    for (int i = at; i < at + heads; i++) {
        t->s.scale[i] = scale_of(type, p, r, first + i);
    }
    weigh(heads, p->cap * OE_LOG2E, &t->s, at);
}

/* Adds the values of cells [begin, end). */
INLINE void mix_some(const int type, const int heads, const oe_attention_piece *p, const oe_attention_query *query,
                     tile *t, int at, int64_t begin, int64_t end) {
    mix_values(type, heads, p, query + at, t->cell + (begin - t->low), end - begin, t->s.score[at] + begin,
               t->s.shrink + at);
}

/* A function of its own: it is called at three places, and each copy takes the compiler a second. */
NOINLINE void oe_mix_one(const oe_attention_piece *p, const oe_attention_query *query, tile *t, int at, int64_t begin,
                         int64_t end) {
    mix_some(OE_ATTENTION_TYPE, 1, p, query, t, at, begin, end);
}

/* Those of cells before (or behind) the ones that all see. */
INLINE void mix_ragged(const oe_attention_piece *p, const oe_attention_query *query, int n, tile *t, bool before) {
    for (int i = 0; i < n; i++) {
        const int64_t begin = before || t->s.from[i] > t->end ? t->s.from[i] : t->end;
        const int64_t end = before && t->s.to[i] > t->begin ? t->begin : t->s.to[i];
        if (begin < end) {
            oe_mix_one(p, query, t, i, begin, end);
            t->s.shrink[i] = 1.0f;
        }
    }
}

/* Calls `does(type, heads, p, query, t, at, ...)` for n queries, as many at a time as the registers can hold. */
#if SUMS >= 8
#define UP_TO_8(n, at, does, ...)                                                                                      \
    for (; at + 8 <= n; at += 8) {                                                                                     \
        does(type, 8, p, query, t, at, ##__VA_ARGS__);                                                                 \
    }
#else
#define UP_TO_8(n, at, does, ...)
#endif
#if SUMS >= 4
#define UP_TO_4(n, at, does, ...)                                                                                      \
    for (; at + 4 <= n; at += 4) {                                                                                     \
        does(type, 4, p, query, t, at, ##__VA_ARGS__);                                                                 \
    }                                                                                                                  \
    for (; at + 2 <= n; at += 2) {                                                                                     \
        does(type, 2, p, query, t, at, ##__VA_ARGS__);                                                                 \
    }
#else
#define UP_TO_4(n, at, does, ...)
#endif

INLINE int64_t clamp(int64_t x, int64_t low, int64_t high) { return x < low ? low : x > high ? high : x; }

/* What up to HEADS queries see of the tile that begins with cell `first`; false where that is nothing. */
INLINE bool look(const oe_attention_piece *p, const oe_attention_query *query, int n, int64_t first, tile *t) {
    t->low = TILE, t->high = 0, t->begin = 0, t->end = TILE;
    for (int i = 0; i < n; i++) {
        t->s.partial[i] = query[i].partial;
        t->s.from[i] = clamp(query[i].first - first, 0, TILE);
        t->s.to[i] = clamp(query[i].end - first, t->s.from[i], TILE);
        if (t->s.from[i] < t->s.to[i]) {
            t->low = t->s.from[i] < t->low ? t->s.from[i] : t->low;
            t->high = t->s.to[i] > t->high ? t->s.to[i] : t->high;
        }
        t->begin = t->s.from[i] > t->begin ? t->s.from[i] : t->begin;
        t->end = t->s.to[i] < t->end ? t->s.to[i] : t->end;
    }
    if (t->begin >= t->end) { /* each query adds its values alone, all those before `begin` first */
        t->begin = t->end = clamp(t->begin, t->low, t->high);
    }
    t->cell = p->list + (p->base + first + t->low);
    return t->low < t->high;
}

/* `next`: the cell behind the tile that follows. */
INLINE void attend_some(const int type, const oe_attention_piece *p, const oe_attention_query *query, int n,
                        int64_t first, int64_t next, const rounded *r) {
    tile some;
    tile *t = &some;
    int at = 0;
    if (!look(p, query, n, first, t)) {
        return;
    }
    UP_TO_8(n, at, weigh_some, r)
    UP_TO_4(n, at, weigh_some, r)
    for (; at < n; at++) {
        weigh_some(type, 1, p, query, t, at, r);
    }
    for (int64_t c = first + TILE; c < next; c++) {
        prefetch(&p->keys, p->list[p->base + c]);
    }
    const bool ragged = t->low < t->begin || t->end < t->high;
    if (ragged) {
        mix_ragged(p, query, n, t, true);
    }
    at = 0;
    UP_TO_8(n, at, mix_some, t->begin, t->end)
    UP_TO_4(n, at, mix_some, t->begin, t->end)
    for (; at < n; at++) {
        oe_mix_one(p, query, t, at, t->begin, t->end);
    }
    if (ragged) {
        for (int i = 0; i < n; i++) {
            t->s.shrink[i] = 1.0f;
        }
        mix_ragged(p, query, n, t, false);
    }
}

#endif
