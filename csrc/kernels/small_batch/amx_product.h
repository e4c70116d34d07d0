/* The product (kernel.h) of a quantized weight type with AMX's tiles of signed bytes, for many rows of activations. A
 * file includes this behind panel256.h or panel32.h and its unpack_block.
 *
 * A thread takes COLUMN_GROUPS times 16 rows of weights. It unpacks CHUNK blocks of each into panels, in the order of
 * AMX's second operand (4 numbers along k, 16 rows of weights beside each other), and multiplies these with the rows of
 * activations as they lie, 32 at a time. Tiles add up whole numbers of a block. What follows is done in the order and
 * with the operations of vector_product.h, so that the bits are the same.
 *
 * A tile takes about as long to multiply as its sums take to be added up, so these alternate in PARTS: both fit into
 * the CPU's window of instructions. (In whole steps, Q4_K takes a tenth longer.) */
#include <stdlib.h>

#define COLUMN_GROUPS 2
#define CHUNK (2048 / K_BLOCK)
#define PARTS 4

typedef struct tile_config {
    uint8_t palette, start;
    uint8_t reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

typedef struct work {
    panel_block panel[COLUMN_GROUPS][CHUNK];
    row_sums sums[COLUMN_GROUPS];
} work;

/* LANES rows of weights from `from` on; results of the first `skip` are not stored. */
typedef struct columns {
    int64_t from;
    int skip;
} columns;

INLINE void store_tiles(const int halves, tile_dots *to) {
    _tile_stored(0, to->of[0][0], 64);
    _tile_stored(2, to->of[1][0], 64);
    if (halves == 2) {
        _tile_stored(1, to->of[0][16], 64);
        _tile_stored(3, to->of[1][16], 64);
    }
}

/* Blocks first .. last - 1, whose panel it is, times `n` rows of activations, 16 * halves at most, from `row` on, which
 * are the rows `at` .. of the sums. */
INLINE void multiply_rows(const int halves, const oe_sb_product *p, int64_t row, int64_t n, int64_t first, int64_t last,
                          const panel_block *panel, int64_t at, row_sums *sums) {
    const size_t stride = OE_QUAD * sizeof(act_block);
    const act_block *act = (const act_block *)p->acts + (first / OE_QUAD * p->rows + row) * OE_QUAD;
    const int64_t to_next_quad = (p->rows - 1) * OE_QUAD + STEP;
    tile_dots dots[2], *now = &dots[0], *later = &dots[1];
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) {
        multiply_part(halves, part, act, stride, panel);
    }
    store_tiles(halves, now);
    for (int64_t b = first; b < last; b += STEP, panel += STEP) {
        const act_block *next = act + (b % OE_QUAD + STEP == OE_QUAD ? to_next_quad : STEP);
        const panel_scales scales = scales_of(panel);
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) {
            if (b + STEP < last) {
                multiply_part(halves, part, next, stride, panel + STEP);
            }
            for (int64_t i = n * part / PARTS; i < n * (part + 1) / PARTS; i++) {
                add_dots(&scales, now, i, act + OE_QUAD * i, &sums->of[b % OE_QUAD][at + i]);
            }
        }
        if (b + STEP < last) {
            store_tiles(halves, later);
        }
        tile_dots *const free = now;
        now = later;
        later = free;
        act = next;
    }
}

static void oe_multiply_panel(const oe_sb_product *p, int64_t row, int64_t rows, int64_t first, int64_t last,
                              const panel_block *panel, row_sums *sums) {
    for (int64_t i = 0; i < rows; i += 32) {
        const int64_t n = rows - i < 32 ? rows - i : 32;
        if (n > 16) {
            multiply_rows(2, p, row + i, n, first, last, panel, i, sums);
        } else {
            multiply_rows(1, p, row + i, n, first, last, panel, i, sums);
        }
    }
}

/* Blocks first .. last - 1 of LANES rows of weights; zeros follow, up to a whole step. */
static void oe_unpack(const oe_sb_product *p, int64_t from, int64_t first, int64_t last, panel_block *panel) {
    window w = {p->weights + (size_t)from * p->row_bytes + (size_t)first * BLOCK_BYTES, p->row_bytes, 4 * p->row_bytes};
    for (int64_t b = first; b < last; b++, w.at += BLOCK_BYTES) {
        unpack_block(w, panel++);
    }
    if ((last - first) % STEP) {
        memset(panel, 0, sizeof *panel);
    }
}

static void oe_store(const oe_sb_product *p, int64_t row, int64_t rows, columns of, const row_sums *sums) {
    for (int64_t i = 0; i < rows; i++) {
        const floats total = floats_add(floats_add(sums->of[0][i], sums->of[1][i]),
                                        floats_add(sums->of[2][i], sums->of[3][i]));
        store_lanes(oe_sb_out(p, row + i) + of.from, of.skip, total);
    }
}

static void oe_multiply_columns(const oe_sb_product *p, const columns *of, int groups, int64_t row, int64_t rows,
                                work *w) {
    memset(w->sums, 0, sizeof w->sums);
    for (int64_t first = 0; first < p->blocks; first += CHUNK) {
        const int64_t last = first + CHUNK < p->blocks ? first + CHUNK : p->blocks;
        for (int g = 0; g < groups; g++) {
            oe_unpack(p, of[g].from, first, last, w->panel[g]);
        }
        for (int g = 0; g < groups; g++) {
            oe_multiply_panel(p, row, rows, first, last, w->panel[g], &w->sums[g]);
        }
    }
    for (int g = 0; g < groups; g++) {
        oe_store(p, row, rows, of[g], &w->sums[g]);
    }
}

/* False where there is no memory. (A quarter of a megabyte: more than some systems' stacks have.) */
static bool oe_multiply_with_tiles(const oe_sb_product *p, int64_t first, int64_t last) {
    /* Tiles 0 to 3 hold sums, 4 and 5 rows of activations, 6 and 7 weights. Not a local: GCC's header says that only 8
     * of its bytes are read. */
    static const tile_config config = {
        .palette = 1,
        .bytes = {64, 64, 64, 64, K_TILE, K_TILE, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, K_TILE / 4, K_TILE / 4},
    };
    work *w = aligned_alloc(64, sizeof *w);
    if (!w) {
        return false;
    }
    _tile_loadconfig(&config);
    while (first < last) {
        columns of[COLUMN_GROUPS];
        int groups = 0;
        for (; groups < COLUMN_GROUPS && first < last; groups++, first += LANES) {
            of[groups].from = first + LANES <= p->m ? first : p->m - LANES;
            of[groups].skip = (int)(first - of[groups].from);
        }
        for (int64_t row = 0; row < p->rows; row += ROWS_AT_ONCE) {
            oe_multiply_columns(p, of, groups, row, p->rows - row < ROWS_AT_ONCE ? p->rows - row : ROWS_AT_ONCE, w);
        }
    }
    _tile_release();
    free(w);
    return true;
}
