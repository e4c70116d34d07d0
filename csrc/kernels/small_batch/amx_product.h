/* The product (kernel.h) of a quantized weight type with AMX's tiles of signed bytes, for many rows of activations. A
 * file includes this behind panel256.h or panel32.h and its unpack_block.
 *
 * A thread takes up to COLUMN_GROUPS times 16 rows of weights. It unpacks each 16 into a panel, in the order of AMX's
 * second operand (4 numbers along k, 16 rows of weights beside each other), and multiplies the panels with the rows of
 * activations as they lie, 32 at a time. Tiles add up whole numbers of a block. What follows is done in the order and
 * with the operations of vector_product.h, so that the bits are the same.
 *
 * A tile takes about as long to multiply as its sums take to be added up, so these alternate in PARTS: both fit into
 * the CPU's window of instructions. (In whole steps, Q4_K takes a tenth longer.) */
#include <stdlib.h>

#define COLUMN_GROUPS 8
#define PANELS_BYTES 1200000 /* more than half of the L2 cache that CPUs with AMX have; measured: 0.6 to 1.2 MB */
#define PARTS 4

typedef struct tile_config {
    uint8_t palette, start;
    uint8_t reserved[14];
    uint16_t bytes[16];
    uint8_t rows[16];
} tile_config;

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

/* Adds a panel times `n` rows of activations, 16 * halves at most, from `row` on, to `sums`. */
INLINE void multiply_rows(const int halves, const oe_sb_product *p, int64_t row, int64_t n, const panel_block *panel,
                          row_sums *sums) {
    const size_t stride = OE_QUAD * sizeof(act_block);
    const act_block *act = (const act_block *)p->acts + row * OE_QUAD;
    const int64_t to_next_quad = (p->rows - 1) * OE_QUAD + STEP;
    tile_dots dots[2], *now = &dots[0], *later = &dots[1];
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) {
        multiply_part(halves, part, act, stride, panel);
    }
    store_tiles(halves, now);
    for (int64_t b = 0; b < p->blocks; b += STEP, panel += STEP) {
        const act_block *next = act + (b % OE_QUAD + STEP == OE_QUAD ? to_next_quad : STEP);
        const panel_scales scales = scales_of(panel);
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) {
            if (b + STEP < p->blocks) {
                multiply_part(halves, part, next, stride, panel + STEP);
            }
            for (int64_t i = n * part / PARTS; i < n * (part + 1) / PARTS; i++) {
                add_dots(&scales, now, i, act + OE_QUAD * i, &sums->of[b % OE_QUAD][i]);
            }
        }
        if (b + STEP < p->blocks) {
            store_tiles(halves, later);
        }
        tile_dots *const free = now;
        now = later;
        later = free;
        act = next;
    }
}

/* The lines of results, so that they have come when they are written: they lie far from each other. */
INLINE void fetch_results(const oe_sb_product *p, int64_t row, int64_t n, columns of) {
    for (int64_t i = 0; i < n; i++) {
        __builtin_prefetch(oe_sb_out(p, row + i) + of.from, 1);
    }
}

static void oe_multiply_panel(const oe_sb_product *p, int64_t row, int64_t n, const panel_block *panel, columns of) {
    row_sums sums;
    memset(&sums, 0, sizeof sums);
    fetch_results(p, row, n, of);
    if (n > 16) {
        multiply_rows(2, p, row, n, panel, &sums);
    } else {
        multiply_rows(1, p, row, n, panel, &sums);
    }
    for (int64_t i = 0; i < n; i++) {
        const floats total = floats_add(floats_add(sums.of[0][i], sums.of[1][i]),
                                        floats_add(sums.of[2][i], sums.of[3][i]));
        store_lanes(oe_sb_out(p, row + i) + of.from, of.skip, total);
    }
}

/* LANES rows of weights; zeros follow, up to a whole step. */
static void oe_unpack(const oe_sb_product *p, int64_t from, panel_block *panel) {
    window w = {p->weights + (size_t)from * p->row_bytes, p->row_bytes, 4 * p->row_bytes};
    for (int64_t b = 0; b < p->blocks; b++, w.at += BLOCK_BYTES) {
        unpack_block(w, panel++);
    }
    if (p->blocks % STEP) {
        memset(panel, 0, sizeof *panel);
    }
    __asm__ volatile("" : : : "memory"); /* GCC does not know that tile loads read memory, and may store later */
}

/* Blocks of a panel. */
static int64_t oe_steps_of(const oe_sb_product *p) { return (p->blocks + STEP - 1) / STEP * STEP; }

/* How many groups of rows of weights share each look at the activations; many rows of these do not fit the L2 cache. */
static int oe_groups_of(const oe_sb_product *p) {
    const int64_t fit = PANELS_BYTES / (oe_steps_of(p) * (int64_t)sizeof(panel_block));
    return (int)(fit < 1 ? 1 : fit > COLUMN_GROUPS ? COLUMN_GROUPS : fit);
}

/* Results first .. first + 16 * groups - 1 along m, or up to `last`. */
static void oe_multiply_groups(const oe_sb_product *p, int64_t first, int64_t last, int groups, panel_block *panels) {
    const int64_t steps = oe_steps_of(p);
    columns of[COLUMN_GROUPS];
    int n = 0;
    for (; n < groups && first < last; n++, first += LANES) {
        of[n].from = first + LANES <= p->m ? first : p->m - LANES;
        of[n].skip = (int)(first - of[n].from);
        oe_unpack(p, of[n].from, panels + n * steps);
    }
    for (int64_t row = 0; row < p->rows; row += 32) {
        for (int g = 0; g < n; g++) {
            oe_multiply_panel(p, row, p->rows - row < 32 ? p->rows - row : 32, panels + g * steps, of[g]);
        }
    }
}

/* False where there is no memory for panels. */
static bool oe_multiply_with_tiles(const oe_sb_product *p, int64_t first, int64_t last) {
    /* Tiles 0 to 3 hold sums, 4 and 5 rows of activations, 6 and 7 weights. Not a local: GCC's header says that only 8
     * of its bytes are read. */
    static const tile_config config = {
        .palette = 1,
        .bytes = {64, 64, 64, 64, K_TILE, K_TILE, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, K_TILE / 4, K_TILE / 4},
    };
    const int groups = oe_groups_of(p);
    panel_block *panels = aligned_alloc(64, (size_t)(groups * oe_steps_of(p)) * sizeof *panels);
    if (!panels) {
        return false;
    }
    _tile_loadconfig(&config);
    for (; first < last; first += groups * LANES) {
        oe_multiply_groups(p, first, last, groups, panels);
    }
    _tile_release();
    free(panels);
    return true;
}
