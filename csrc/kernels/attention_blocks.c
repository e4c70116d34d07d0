/* Many queries and an unpacked tile of cells (attention_many.h): both products are blocks of sums in registers.
 * Compiled once for each instruction set; OE_ATTEND_BLOCKS is the function's name. */
#include "kernels/attention_many.h"

/* Blocks of sums in registers: queries, vectors of cells or of values, and of scores the lanes that are summed side by
 * side. The widths are the fastest of those tried (docs/performance-history.md). */
#define BLOCK_QUERIES 6
#if defined(__AVX512F__)
#define BLOCK_VECTORS 4
#define SCORE_QUERIES 6
#else
#define BLOCK_VECTORS 1
#define SCORE_QUERIES 3
#endif
#define SCORE_LANES 2
#if defined(__AVX512F__)
#define ROUNDED_VECTORS 4
#else
#define ROUNDED_VECTORS 1
#endif
#define SCORE_SUMS (SCORE_QUERIES * SCORE_VECTORS)
#define MOST_SUMS (BLOCK_QUERIES * BLOCK_VECTORS)

/* Some queries, and which cells of the tile each sees. */
typedef struct block {
    const float *query[BLOCK_QUERIES];
    const int16_t *rounded[BLOCK_QUERIES];
    scores s;
} block;

/* -- products ------------------------------------------------------------------------------------------------------ */

/* sum[i] = numbers l[i], l[i] + 16, l[i] + 32 ... of the queries times those of the keys. */
INLINE void score_lanes(const int queries, const int vectors, const float *const *query, const float *keys,
                        int64_t dim, const int *l, lanes (*sum)[SCORE_SUMS]) {
#pragma GCC unroll 32
    for (int i = 0; i < SCORE_LANES * queries * vectors; i++) {
        sum[i % SCORE_LANES][i / SCORE_LANES] = lanes_set(0.0f);
    }
#pragma GCC unroll 1
    for (int64_t d = 0; d < dim; d += OE_LANES) {
#pragma GCC unroll 4
        for (int i = 0; i < SCORE_LANES; i++) {
            lanes key[BLOCK_VECTORS];
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                key[v] = lanes_load(keys + (d + l[i]) * TILE + v * OE_LANES);
            }
#pragma GCC unroll 8
            for (int q = 0; q < queries; q++) {
                const lanes x = lanes_set(query[q][d + l[i]]);
#pragma GCC unroll 8
                for (int v = 0; v < vectors; v++) {
                    sum[i][q * vectors + v] = lanes_fma(x, key[v], sum[i][q * vectors + v]);
                }
            }
        }
    }
}

/* The scores of 16 * `vectors` cells, whose keys are given. Sums that lanes_sum joins follow each other: two that are 8
 * apart, then pairs of these 4 apart, and so on. */
INLINE void score_cells_many(const int queries, const int vectors, const float *const *query, const float *keys,
                             int64_t dim, float *score) {
    static const int order[OE_LANES] = {0, 8, 4, 12, 2, 10, 6, 14, 1, 9, 5, 13, 3, 11, 7, 15};
    enum { STEPS = OE_LANES / SCORE_LANES };
    _Alignas(64) float open[3][SCORE_SUMS * OE_LANES]; /* joined sums that wait for their other half */
#pragma GCC unroll 8
    for (int i = 0; i < STEPS; i++) {
        lanes sum[SCORE_LANES][SCORE_SUMS];
        score_lanes(queries, vectors, query, keys, dim, order + i * SCORE_LANES, sum);
#pragma GCC unroll 32
        for (int k = 0; k < queries * vectors; k++) {
            lanes x = lanes_add(sum[0][k], sum[1][k]);
            int level = 0;
#pragma GCC unroll 3
            for (; i >> level & 1; level++) {
                x = lanes_add(lanes_load(open[level] + k * OE_LANES), x);
            }
            lanes_store(i + 1 < STEPS ? open[level] + k * OE_LANES
                                      : score + k / vectors * TILE + k % vectors * OE_LANES, x);
        }
    }
}

/* The same of rounded queries and keys. */
INLINE void score_cells_rounded(const int queries, const int vectors, const int16_t *const *query, const float *keys,
                                int64_t dim, const float *factor, float *score) {
    wholes sum[SCORE_QUERIES * ROUNDED_VECTORS];
#pragma GCC unroll 32
    for (int i = 0; i < queries * vectors; i++) {
        sum[i] = wholes_zero();
    }
#pragma GCC unroll 1
    for (int64_t d = 0; d < dim; d += 2, keys += TILE) {
        pairs key[ROUNDED_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            key[v] = pairs_load((const int16_t *)(const void *)(keys + v * OE_LANES));
        }
#pragma GCC unroll 8
        for (int q = 0; q < queries; q++) {
            const pairs x = pairs_set(query[q] + d);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                sum[q * vectors + v] = wholes_add_products(sum[q * vectors + v], x, key[v]);
            }
        }
    }
#pragma GCC unroll 32
    for (int k = 0; k < queries * vectors; k++) {
        const lanes x = lanes_mul(lanes_from_wholes(sum[k]), lanes_load(factor + k % vectors * OE_LANES));
        lanes_store(score + k / vectors * TILE + k % vectors * OE_LANES, x);
    }
}

/* Of the cells that any query of the block sees. */
INLINE void score_tile(const int queries, block *b, const unpacked *t, int64_t dim) {
    int64_t low = TILE, high = 0;
    for (int i = 0; i < queries; i++) {
        if (b->s.from[i] < b->s.to[i]) {
            low = b->s.from[i] < low ? b->s.from[i] : low;
            high = b->s.to[i] > high ? b->s.to[i] : high;
        }
    }
    const int some = queries < SCORE_QUERIES ? queries : SCORE_QUERIES;
    const int64_t width = (t->rounded ? ROUNDED_VECTORS : SCORE_VECTORS) * OE_LANES;
#pragma GCC unroll 1
    for (int q = 0; q < queries; q += some) {
        for (int64_t at = low / width * width; at < high; at += width) {
            if (t->rounded) {
                score_cells_rounded(some, ROUNDED_VECTORS, b->rounded + q, t->keys + at, t->rounded->stride,
                                    t->rounded->key_factor + at, &b->s.score[q][at]);
            } else {
                score_cells_many(some, SCORE_VECTORS, b->query + q, t->keys + at, dim, &b->s.score[q][at]);
            }
        }
    }
}

/* Adds the weighted values of cells [begin, end), `vectors` * 16 numbers from `from` on, for queries from `first`;
 * `shrinks`: to sums that are still to be multiplied with `shrink`. */
INLINE void mix_block(const int queries, const int vectors, const bool shrinks, const block *b, int first,
                      const unpacked *t, int64_t begin, int64_t end, int64_t from) {
    lanes sum[MOST_SUMS];
#pragma GCC unroll 32
    for (int i = 0; i < queries * vectors; i++) {
        sum[i] = lanes_load(b->s.partial[first + i / vectors] + VALUES_AT + from + i % vectors * OE_LANES);
        sum[i] = shrinks ? lanes_mul(sum[i], lanes_set(b->s.shrink[first + i / vectors])) : sum[i];
    }
    for (int64_t c = begin; c < end; c++) {
        lanes value[BLOCK_VECTORS];
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) {
            value[v] = lanes_load(t->values + c * t->stride + from + v * OE_LANES);
        }
#pragma GCC unroll 8
        for (int q = 0; q < queries; q++) {
            const lanes weight = lanes_set(b->s.score[first + q][c]);
#pragma GCC unroll 8
            for (int v = 0; v < vectors; v++) {
                sum[q * vectors + v] = lanes_fma(weight, value[v], sum[q * vectors + v]);
            }
        }
    }
#pragma GCC unroll 32
    for (int i = 0; i < queries * vectors; i++) {
        lanes_store(b->s.partial[first + i / vectors] + VALUES_AT + from + i % vectors * OE_LANES, sum[i]);
    }
}

INLINE void mix_cells(const int queries, const bool shrinks, const block *b, int first, const unpacked *t,
                      int64_t begin, int64_t end) {
    int64_t from = 0;
    if (begin >= end) {
        return;
    }
    for (; from + BLOCK_VECTORS * OE_LANES <= t->stride; from += BLOCK_VECTORS * OE_LANES) {
        mix_block(queries, BLOCK_VECTORS, shrinks, b, first, t, begin, end, from);
    }
    for (; from < t->stride; from += OE_LANES) {
        mix_block(queries, 1, shrinks, b, first, t, begin, end, from);
    }
}

/* -- a block of queries -------------------------------------------------------------------------------------------- */

INLINE void shrink_values(float *partial, int64_t stride, float factor) {
    for (int64_t i = 0; i < stride; i += OE_LANES) {
        lanes_store(partial + VALUES_AT + i, lanes_mul(lanes_load(partial + VALUES_AT + i), lanes_set(factor)));
    }
}

/* Weighs and adds up the values; cells that only some of the queries see are added to each of these alone. */
INLINE void mix_tile(const int queries, const block *b, const unpacked *t) {
    int64_t begin = 0, end = TILE;
    for (int i = 0; i < queries; i++) {
        begin = b->s.from[i] > begin ? b->s.from[i] : begin;
        end = b->s.to[i] < end ? b->s.to[i] : end;
    }
    if (begin == 0 && end == TILE) { /* as most are */
        mix_cells(queries, true, b, 0, t, 0, TILE);
        return;
    }
    end = end > begin ? end : begin;
    for (int i = 0; i < queries; i++) {
        shrink_values(b->s.partial[i], t->stride, b->s.shrink[i]);
        mix_cells(1, false, b, i, t, b->s.from[i], b->s.to[i] < begin ? b->s.to[i] : begin);
    }
    mix_cells(queries, false, b, 0, t, begin, end);
    for (int i = 0; i < queries; i++) {
        mix_cells(1, false, b, i, t, b->s.from[i] > end ? b->s.from[i] : end, b->s.to[i]);
    }
}

INLINE void attend_block(const int queries, const oe_attention_piece *p, const oe_attention_query *query,
                         const unpacked *t) {
    block b;
    bool any = false;
    for (int i = 0; i < queries; i++) {
        const int64_t from = query[i].first - t->first, to = query[i].end - t->first;
        const int64_t number = query + i - p->queries;
        if (t->rounded) {
            b.rounded[i] = t->rounded->queries + number * t->rounded->stride;
        }
        b.query[i] = query[i].at;
        b.s.scale[i] = scale_of(t->rounded ? OE_ATTENTION_F16 : OE_ATTENTION_F32, p, t->rounded, number);
        b.s.partial[i] = query[i].partial;
        b.s.from[i] = from < 0 ? 0 : from < TILE ? from : TILE;
        b.s.to[i] = to < b.s.from[i] ? b.s.from[i] : to < TILE ? to : TILE;
        any = any || b.s.from[i] < b.s.to[i];
    }
    if (!any) {
        return;
    }
    score_tile(queries, &b, t, p->keys.dim);
    weigh(queries, p->cap * OE_LOG2E, &b.s, 0);
    mix_tile(queries, &b, t);
}

/* -- all queries --------------------------------------------------------------------------------------------------- */

void OE_ATTEND_BLOCKS(const oe_attention_piece *p, const unpacked *t, int64_t n_next) {
    const int64_t blocks = p->n_queries / BLOCK_QUERIES, each = (n_next + blocks - 1) / blocks;
    const int32_t *next = p->list + (p->base + t->first + TILE), *const end = next + n_next;
    int64_t at = 0;
    for (; at + BLOCK_QUERIES <= p->n_queries; at += BLOCK_QUERIES) {
        for (int64_t i = 0; i < each && next < end; i++, next++) {
            prefetch(&p->keys, *next);
            prefetch(&p->values, *next);
        }
        attend_block(BLOCK_QUERIES, p, p->queries + at, t);
    }
    for (; at + 2 <= p->n_queries; at += 2) {
        attend_block(2, p, p->queries + at, t);
    }
    for (; at < p->n_queries; at++) {
        attend_block(1, p, p->queries + at, t);
    }
}
