/* The product (kernel.h) of a quantized weight type with the vectors of AVX-512, or AVX2 for most blocks of 256, for
 * many rows of activations. A file includes this behind panel256.h or panel32.h and its unpack_block.
 *
 * A thread unpacks LANES rows of weights after the other into panels, as many as fit the L2 cache, and multiplies them
 * with all rows of activations: a weight is unpacked once, and not once for every TILE rows. ACROSS panels are
 * multiplied with PANEL_ROWS rows of activations at a time, so that each vector that is loaded serves several products.
 * Of blocks of 32 (TILES is 1) those of one of the sums s0 to s3 come one behind the other, so that sums stay in
 * registers. Of blocks of 256, TILES times as many rows share each look at a block, which stays in the L1 cache.
 *
 * Results have the bits that vector_product.h gives them: whole numbers within a block, and the same operations with
 * floats in the same order. */
#include "threads/thread_scratch.h"

#ifndef PANELS_FROM
#define PANELS_FROM 24 /* rows; for fewer, unpacking into memory costs more than it saves (measured) */
#endif
#define MOST_PANELS 32
/* About half of the L2 cache of a Zen 4 or 5. CPUs with AVX2 alone have 256 or 512 KB. */
#define PANELS_BYTES (LANES == 16 ? 400000 : 200000)

/* LANES rows of weights from `from` on; results of the first `skip` are not stored. */
typedef struct columns {
    int64_t from;
    int skip;
} columns;

/* What is multiplied at once. */
typedef struct piece {
    const oe_sb_product *p;
    const panel_block *panels[ACROSS]; /* the last ones may be the same */
    const columns *to[ACROSS];
    int64_t rows[TILES]; /* the first of PANEL_ROWS rows each */
    int tiles;
} piece;

typedef floats tile_totals[ACROSS][PANEL_ROWS];

static void oe_store_piece(const piece *of, tile_totals (*sums)[TILES]) {
    for (int t = 0; t < of->tiles; t++) {
        for (int n = 0; n < PANEL_ROWS; n++) {
            float *const out = oe_sb_out(of->p, of->rows[t] + n);
            for (int a = 0; a < ACROSS; a++) {
                const floats all = total(sums[0][t][a][n], sums[1][t][a][n], sums[2][t][a][n], sums[3][t][a][n]);
                store_lanes(out + of->to[a]->from, of->to[a]->skip, all);
            }
        }
    }
}

/* What results are stored to is no longer in the L1 cache, or not yet: it is fetched while they are computed. */
static void oe_fetch_results(const piece *of) {
    for (int t = 0; t < of->tiles; t++) {
        for (int n = 0; n < PANEL_ROWS; n++) {
            const float *const out = oe_sb_out(of->p, of->rows[t] + n);
            for (int a = 0; a < ACROSS; a++) {
                __builtin_prefetch(out + of->to[a]->from, 1);
            }
        }
    }
}

INLINE void clear_totals(tile_totals *sums) {
    for (int a = 0; a < ACROSS; a++) {
        for (int n = 0; n < PANEL_ROWS; n++) {
            (*sums)[a][n] = floats_set(0);
        }
    }
}

#if TILES == 1

/* Where a panel has a block. */
INLINE int64_t oe_panel_at(int64_t blocks, int64_t block) {
    const int64_t sum = block % OE_QUAD, longer = blocks % OE_QUAD; /* sums have a block more before this one */
    return sum * (blocks / OE_QUAD) + (sum < longer ? sum : longer) + block / OE_QUAD;
}

/* Makes the sum `s` of every fourth block, and moves x behind these. */
INLINE void add_up(const piece *of, int s, const panel_block *x[ACROSS], tile_totals *sum) {
    const oe_sb_product *const p = of->p;
    const act_block *acts = (const act_block *)p->acts + of->rows[0] * OE_QUAD + s;
    tile_totals in;
    clear_totals(&in);
    for (int64_t b = s; b < p->blocks; b += OE_QUAD) {
        const act_block *const next = acts + p->rows * OE_QUAD;
#pragma GCC unroll 8
        for (int n = 0; n < PANEL_ROWS; n++) {
            __builtin_prefetch(next + OE_QUAD * n); /* another page, which the CPU does not foresee */
        }
        multiply_block(x, acts, in);
        acts = next;
        for (int a = 0; a < ACROSS; a++) {
            x[a]++;
        }
    }
    memcpy(sum, &in, sizeof in);
}

static void oe_multiply_piece(const piece *of) {
    const panel_block *x[ACROSS];
    tile_totals sums[OE_QUAD][TILES];
    memcpy(x, of->panels, sizeof x);
    oe_fetch_results(of);
    for (int s = 0; s < OE_QUAD; s++) {
        add_up(of, s, x, &sums[s][0]);
    }
    oe_store_piece(of, sums);
}

#else

INLINE int64_t oe_panel_at(int64_t blocks, int64_t block) {
    (void)blocks;
    return block;
}

static void oe_multiply_piece(const piece *of) {
    const oe_sb_product *const p = of->p;
    const panel_block *x[ACROSS];
    tile_totals sums[OE_QUAD][TILES];
    for (int64_t b = p->blocks; b < OE_QUAD; b++) {
        for (int t = 0; t < of->tiles; t++) {
            clear_totals(&sums[b][t]);
        }
    }
    memcpy(x, of->panels, sizeof x);
    oe_fetch_results(of);
    for (int64_t b = 0; b < p->blocks; b++) {
        const act_block *const acts = (const act_block *)p->acts + b / OE_QUAD * p->rows * OE_QUAD + b % OE_QUAD;
        for (int t = 0; t < of->tiles; t++) {
            if (b < OE_QUAD) { /* as they are needed: all at once costs a product of 2048 weights a row 4 % */
                clear_totals(&sums[b][t]);
            }
            multiply_block(x, acts + of->rows[t] * OE_QUAD, sums[b % OE_QUAD][t]);
        }
        for (int a = 0; a < ACROSS; a++) {
            x[a]++;
        }
    }
    oe_store_piece(of, sums);
}

#endif

/* `n` panels with all rows of activations. The last PANEL_ROWS rows may overlap those before, and the last panel may be
 * taken several times: the same bits are stored again. */
static void oe_multiply_panels(const oe_sb_product *p, const panel_block *panels, const columns *of, int n) {
    const int64_t tiles = (p->rows + PANEL_ROWS - 1) / PANEL_ROWS;
    piece all = {.p = p};
    for (int64_t tile = 0; tile < tiles; tile += TILES) {
        all.tiles = (int)(tiles - tile < TILES ? tiles - tile : TILES);
        for (int t = 0; t < all.tiles; t++) {
            const int64_t row = (tile + t) * PANEL_ROWS;
            all.rows[t] = row + PANEL_ROWS <= p->rows ? row : p->rows - PANEL_ROWS;
        }
        for (int first = 0; first < n; first += ACROSS) {
            for (int a = 0; a < ACROSS; a++) {
                const int at = first + a < n ? first + a : n - 1;
                all.panels[a] = panels + at * p->blocks;
                all.to[a] = of + at;
            }
            oe_multiply_piece(&all);
        }
    }
}

static void oe_unpack(const oe_sb_product *p, int64_t from, panel_block *panel) {
    window w = {
        .at = p->weights + (size_t)from * p->row_bytes, .near = p->row_bytes, .far = 4 * p->row_bytes};
    const bool more = from + 2 * LANES <= p->m; /* the next rows come from memory meanwhile */
    for (int64_t b = 0; b < p->blocks; b++, w.at += BLOCK_BYTES) {
        for (size_t i = 0; more && i < LANES; i++) {
            for (size_t line = 0; line < BLOCK_BYTES; line += 64) {
                __builtin_prefetch(w.at + (LANES + i) * p->row_bytes + line);
            }
        }
        panel_block *const to = panel + oe_panel_at(p->blocks, b);
        unpack_block(w, to);
        end_unpacking(to);
    }
}

/* Panels that are made at a time, a multiple of ACROSS. */
static int oe_panels_of(const oe_sb_product *p) {
    const int64_t fit = PANELS_BYTES / (p->blocks * (int64_t)sizeof(panel_block)) / ACROSS * ACROSS;
    return (int)(fit < ACROSS ? ACROSS : fit > MOST_PANELS ? MOST_PANELS : fit);
}

/* False where there is no memory for panels. */
static bool oe_multiply_with_panels(const oe_sb_product *p, int64_t first, int64_t last) {
    columns of[MOST_PANELS];
    const int most = oe_panels_of(p);
    panel_block *const panels = oe_thread_scratch((size_t)(most * p->blocks) * sizeof *panels);
    if (!panels) {
        return false;
    }
    while (first < last) {
        int n = 0;
        for (; n < most && first < last; n++, first += LANES) {
            of[n].from = first + LANES <= p->m ? first : p->m - LANES;
            of[n].skip = (int)(first - of[n].from);
            oe_unpack(p, of[n].from, panels + n * p->blocks);
        }
        oe_multiply_panels(p, panels, of, n);
    }
    return true;
}
