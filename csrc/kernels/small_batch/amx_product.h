/* The product (kernel.h) of a quantized weight type with AMX's tiles of signed bytes, for many rows of activations. A
 * file includes this behind panel256.h or panel32.h and its unpack_block.
 *
 * A thread takes up to COLUMN_GROUPS times 16 rows of weights. It unpacks each 16 into a panel, in the order of AMX's
 * second operand (4 numbers along k, 16 rows of weights beside each other), and multiplies the panels with the rows of
 * activations, 32 at a time (amx_steps256.h, amx_steps32.h). Tiles add up whole numbers of a block. What follows is
 * done in the order and with the operations of vector_product.h, so that the bits are the same.
 *
 * What limits it is the way from the L2 cache to the L1 cache, above all the way back of what was written (16 bytes a
 * cycle where it was measured). So TOGETHER panels share the activations of a step, and all blocks of s0 come first,
 * then all of s1 (kernel.h): its sums stay in the L1 cache. */
#include "kernels/amx/tile_config.h"
#include "threads/thread_scratch.h"

#define PANELS_BYTES 1200000 /* more than half of the L2 cache that CPUs with AMX have; measured: 0.6 to 1.2 MB */
#define SUMS (OE_QUAD * TOGETHER * 32)

/* LANES rows of weights from `from` on; results of the first `skip` are not stored. */
typedef struct columns {
    int64_t from;
    int skip;
} columns;

/* What is multiplied at once: `n` rows of activations, 32 at most, and `groups` panels, TOGETHER at most. */
typedef struct piece {
    const oe_sb_product *p;
    int64_t row, n;
    const act_panel *acts;     /* of oe_packed_rows, for blocks of 32 */
    const panel_block *panels; /* ordered by panel_index */
    int groups;
    floats *sums;              /* [OE_QUAD][groups][32], of SUMS */
} piece;

#if K_BLOCK == 256
#include "kernels/small_batch/amx_steps256.h"
#else
#include "kernels/small_batch/amx_steps32.h"
#endif

/* The sums of sums that have no block are 0. */
INLINE floats total_of(const piece *of, int group, int64_t i) {
    const int64_t to_next_sum = (int64_t)of->groups * 32;
    const floats *x = of->sums + (int64_t)group * 32 + i;
    return floats_add(floats_add(x[0], x[to_next_sum]), floats_add(x[2 * to_next_sum], x[3 * to_next_sum]));
}

static void oe_multiply_panels(const piece *of, const columns *to) {
    if (of->p->blocks < OE_QUAD) {
        memset(of->sums, 0, (size_t)(OE_QUAD * of->groups * 32) * sizeof *of->sums);
    }
    oe_multiply_piece(of);
    for (int64_t i = 0; i < of->n; i++) {
        for (int g = 0; g < of->groups; g++) {
            store_lanes(oe_sb_out(of->p, of->row + i) + to[g].from, to[g].skip, total_of(of, g, i));
        }
    }
}

/* LANES rows of weights, as the panel `group` of `groups`. */
static void oe_unpack(const oe_sb_product *p, int64_t from, int group, int groups, panel_block *panels) {
    window w = {
        .at = p->weights + (size_t)from * p->row_bytes, .near = p->row_bytes, .far = 4 * p->row_bytes};
    for (int64_t b = 0; b < p->blocks; b++, w.at += BLOCK_BYTES) {
        unpack_block(w, panels + panel_index(p, b, group, groups));
    }
    __asm__ volatile("" : : : "memory"); /* GCC does not know that tile loads read memory, and may store later */
}

/* How many groups of rows of weights share each look at the activations; many rows of these do not fit the L2 cache. */
static int oe_groups_of(const oe_sb_product *p) {
    const int64_t fit = PANELS_BYTES / (panel_blocks(p) * (int64_t)sizeof(panel_block));
    return (int)(fit < 1 ? 1 : fit > COLUMN_GROUPS ? COLUMN_GROUPS : fit);
}

INLINE int oe_together(int groups) { return groups < TOGETHER ? groups : TOGETHER; }

/* Memory of a thread. */
typedef struct scratch {
    floats *sums;
    panel_block *panels;
    act_panel *acts;
} scratch;

/* Results first .. first + 16 * groups - 1 along m, or up to `last`. */
static void oe_multiply_groups(const oe_sb_product *p, int64_t first, int64_t last, int groups, const scratch *in) {
    columns of[COLUMN_GROUPS];
    int n = 0;
    for (; n < groups && first < last; n++, first += LANES) {
        of[n].from = first + LANES <= p->m ? first : p->m - LANES;
        of[n].skip = (int)(first - of[n].from);
    }
    for (int g = 0; g < n; g++) {
        const int before = g / TOGETHER * TOGETHER;
        oe_unpack(p, of[g].from, g - before, oe_together(n - before), in->panels + before * panel_blocks(p));
    }
    for (int64_t row = 0; row < p->rows; row += 32) {
        const int64_t rows = p->rows - row < 32 ? p->rows - row : 32;
        const act_panel *const acts = oe_packed_rows(p, row, rows, in->acts);
        piece all = {.p = p, .row = row, .n = rows, .acts = acts, .sums = in->sums};
        for (int g = 0; g < n; g += TOGETHER) {
            all.panels = in->panels + g * panel_blocks(p);
            all.groups = oe_together(n - g);
            oe_multiply_panels(&all, of + g);
        }
    }
}

/* False where there is no memory for panels. */
static bool oe_multiply_with_tiles(const oe_sb_product *p, int64_t first, int64_t last) {
    /* Tiles 0 to 3 hold sums, 4 and 5 rows of activations, 6 and 7 weights. */
    static const oe_tile_config config = {
        .palette = 1,
        .bytes = {64, 64, 64, 64, K_TILE, K_TILE, 64, 64},
        .rows = {16, 16, 16, 16, 16, 16, K_TILE / 4, K_TILE / 4},
    };
    const int groups = oe_groups_of(p);
    const size_t panels = (size_t)(groups * panel_blocks(p)) * sizeof(panel_block);
    const size_t acts = p->packed ? 0 : (size_t)act_panels(p) * sizeof(act_panel);
    /* sums are not on the stack: these are 32 or 64 KB */
    floats *const sums = oe_thread_scratch(SUMS * sizeof *sums + panels + acts);
    if (!sums) {
        return false;
    }
    const scratch in = {sums, (panel_block *)(sums + SUMS), (act_panel *)((char *)(sums + SUMS) + panels)};
    _tile_loadconfig(&config);
    for (; first < last; first += groups * LANES) {
        oe_multiply_groups(p, first, last, groups, &in);
    }
    _tile_release();
    return true;
}
