/* The product (kernel.h) of a quantized weight type with AMX's tiles of signed bytes, for many rows of activations. A
 * file includes this behind panel256.h or panel32.h and its unpack_block.
 *
 * A thread takes up to COLUMN_GROUPS times 16 rows of weights. It unpacks each 16 into a panel, in the order of AMX's
 * second operand (4 numbers along k, 16 rows of weights beside each other), and multiplies the panels with the rows of
 * activations as they lie, 32 at a time. Tiles add up whole numbers of a block. What follows is done in the order and
 * with the operations of vector_product.h, so that the bits are the same.
 *
 * A step multiplies STEP blocks of 32 rows with those of a panel. What limits it is the way from the L2 cache to the
 * L1 cache, above all the way back of what was written (16 bytes a cycle where it was measured). So TOGETHER panels
 * share the activations of a step, and all blocks of s0 come first, then all of s1 (kernel.h): its sums stay in the L1
 * cache.
 *
 * A tile takes about as long to multiply as its sums take to be added up, so these alternate in PARTS: both fit into
 * the CPU's window of instructions. (In whole steps, Q4_K takes a tenth longer.) */
#include <stdlib.h>

#define COLUMN_GROUPS 8
#define PANELS_BYTES 1200000 /* more than half of the L2 cache that CPUs with AMX have; measured: 0.6 to 1.2 MB */
#define PARTS 4
#define SUMS (OE_QUAD * TOGETHER * 32)

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

/* One step: blocks of rows of activations, blocks of a panel, and what their products are added to. */
typedef struct step {
    const act_block *act;
    const panel_block *panel;
    floats *sums; /* [STEP][groups][32] */
    bool first;   /* sums start at 0 */
} step;

/* Steps in their order: by group, then by block of one of the sums s0 to s3, then by sum. */
typedef struct steps {
    const oe_sb_product *p;
    int64_t row;
    const panel_block *panels; /* [blocks / STEP][groups][STEP] */
    int groups;
    floats *sums;              /* [OE_QUAD][groups][32], of SUMS */
    int64_t block, sum;
    int group;
} steps;

INLINE step oe_step(const steps *s) {
    const act_block *const acts = (const act_block *)s->p->acts;
    return (step){
        acts + (s->block / OE_QUAD * s->p->rows + s->row) * OE_QUAD + s->block % OE_QUAD,
        s->panels + s->block * s->groups + s->group * STEP,
        s->sums + (s->sum * s->groups + s->group) * 32,
        s->block < OE_QUAD,
    };
}

/* False behind the last step. */
INLINE bool oe_next_step(steps *s) {
    if (++s->group < s->groups) {
        return true;
    }
    s->group = 0;
    s->block += OE_QUAD;
    if (s->block >= s->p->blocks) {
        s->sum += STEP;
        s->block = s->sum;
    }
    return s->sum < OE_QUAD && s->block < s->p->blocks;
}

INLINE void store_tiles(const int halves, tile_dots *to) {
    _tile_stored(0, to->of[0][0], 64);
    _tile_stored(2, to->of[1][0], 64);
    if (halves == 2) {
        _tile_stored(1, to->of[0][16], 64);
        _tile_stored(3, to->of[1][16], 64);
    }
}

/* Adds up the products of the panels with `n` rows of activations, 16 * halves at most. Tiles work on a step while the
 * sums of the one before are added up. */
INLINE void multiply_rows(const int halves, steps *s, int64_t n) {
    const size_t stride = OE_QUAD * sizeof(act_block);
    const int64_t to_next_sum = (int64_t)s->groups * 32;
    tile_dots dots;
    step now = oe_step(s);
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) {
        multiply_part(halves, part, now.act, stride, now.panel);
    }
    for (bool more = true; more;) {
        store_tiles(halves, &dots);
        more = oe_next_step(s);
        const step next = more ? oe_step(s) : now; /* the last is multiplied once more, for nothing */
        const panel_scales scales = scales_of(now.panel);
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) {
            multiply_part(halves, part, next.act, stride, next.panel);
            for (int64_t i = n * part / PARTS; i < n * (part + 1) / PARTS; i++) {
                add_dots(&scales, &dots, i, now.act + OE_QUAD * i, now.first, now.sums + i, to_next_sum);
            }
        }
        now = next;
    }
}

/* The sums of sums that have no block are 0. */
INLINE floats total_of(const steps *s, int group, int64_t i) {
    const int64_t to_next_sum = (int64_t)s->groups * 32;
    const floats *x = s->sums + (int64_t)group * 32 + i;
    return floats_add(floats_add(x[0], x[to_next_sum]), floats_add(x[2 * to_next_sum], x[3 * to_next_sum]));
}

static void oe_multiply_panels(steps s, int64_t n, const columns *of) {
    if (s.p->blocks < OE_QUAD) {
        memset(s.sums, 0, (size_t)(OE_QUAD * s.groups * 32) * sizeof *s.sums);
    }
    if (n > 16) {
        multiply_rows(2, &s, n);
    } else {
        multiply_rows(1, &s, n);
    }
    for (int64_t i = 0; i < n; i++) {
        for (int g = 0; g < s.groups; g++) {
            store_lanes(oe_sb_out(s.p, s.row + i) + of[g].from, of[g].skip, total_of(&s, g, i));
        }
    }
}

/* LANES rows of weights, as the panel `group` of `groups`; zeros follow, up to a whole step. */
static void oe_unpack(const oe_sb_product *p, int64_t from, int group, int groups, panel_block *panels) {
    window w = {p->weights + (size_t)from * p->row_bytes, p->row_bytes, 4 * p->row_bytes};
    for (int64_t b = 0; b < (p->blocks + STEP - 1) / STEP * STEP; b++, w.at += BLOCK_BYTES) {
        panel_block *const to = panels + (b / STEP * groups + group) * STEP + b % STEP;
        if (b < p->blocks) {
            unpack_block(w, to);
        } else {
            memset(to, 0, sizeof *to);
        }
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

INLINE int oe_together(int groups) { return groups < TOGETHER ? groups : TOGETHER; }

/* Results first .. first + 16 * groups - 1 along m, or up to `last`. */
static void oe_multiply_groups(const oe_sb_product *p, int64_t first, int64_t last, int groups, floats *sums,
                               panel_block *panels) {
    columns of[COLUMN_GROUPS];
    int n = 0;
    for (; n < groups && first < last; n++, first += LANES) {
        of[n].from = first + LANES <= p->m ? first : p->m - LANES;
        of[n].skip = (int)(first - of[n].from);
    }
    for (int g = 0; g < n; g++) {
        const int before = g / TOGETHER * TOGETHER;
        oe_unpack(p, of[g].from, g - before, oe_together(n - before), panels + before * oe_steps_of(p));
    }
    for (int64_t row = 0; row < p->rows; row += 32) {
        for (int g = 0; g < n; g += TOGETHER) {
            const steps all = {.p = p, .row = row, .panels = panels + g * oe_steps_of(p),
                               .groups = oe_together(n - g), .sums = sums};
            oe_multiply_panels(all, p->rows - row < 32 ? p->rows - row : 32, of + g);
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
    /* sums are not on the stack: these are 64 KB */
    floats *sums = aligned_alloc(64, SUMS * sizeof *sums + (size_t)(groups * oe_steps_of(p)) * sizeof(panel_block));
    if (!sums) {
        return false;
    }
    panel_block *panels = (panel_block *)(sums + SUMS);
    _tile_loadconfig(&config);
    for (; first < last; first += groups * LANES) {
        oe_multiply_groups(p, first, last, groups, sums, panels);
    }
    _tile_release();
    free(sums);
    return true;
}
