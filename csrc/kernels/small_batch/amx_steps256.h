/* How tiles multiply a piece (amx_product.h) of weights in blocks of 256 (panel256.h): 32 rows of activations with a
 * block of a panel in each step.
 *
 * A tile takes about as long to multiply as its sums take to be added up, so these alternate in PARTS: both fit into
 * the CPU's window of instructions. (In whole steps, Q4_K takes a tenth longer.) */
#define PARTS 4

INLINE int64_t panel_index(const oe_sb_product *p, int64_t block, int group, int groups) {
    (void)p;
    return block * groups + group;
}

/* Blocks of a panel. */
INLINE int64_t panel_blocks(const oe_sb_product *p) { return p->blocks; }

/* Activations are multiplied where they lie. */
INLINE int64_t act_panels(const oe_sb_product *p) {
    (void)p;
    return 0;
}
INLINE const act_panel *oe_packed_rows(const oe_sb_product *p, int64_t row, int64_t rows, act_panel *to) {
    (void)row;
    (void)rows;
    (void)to;
    return (const act_panel *)p->acts;
}

/* One step: a block of rows of activations, a block of a panel, and what their products are added to. */
typedef struct step {
    const act_block *act;
    const panel_block *panel;
    floats *sums; /* [32] */
    bool first;   /* sums start at 0 */
} step;

/* Steps in their order: by group, then by block of one of the sums s0 to s3, then by sum. */
typedef struct steps {
    const piece *of;
    int64_t block, sum;
    int group;
} steps;

INLINE step oe_step(const steps *s) {
    const piece *const of = s->of;
    const act_block *const acts = (const act_block *)of->p->acts;
    return (step){
        acts + (s->block / OE_QUAD * of->p->rows + of->row) * OE_QUAD + s->block % OE_QUAD,
        of->panels + panel_index(of->p, s->block, s->group, of->groups),
        of->sums + (s->sum * of->groups + s->group) * 32,
        s->block < OE_QUAD,
    };
}

/* False behind the last step. */
INLINE bool oe_next_step(steps *s) {
    if (++s->group < s->of->groups) {
        return true;
    }
    s->group = 0;
    s->block += OE_QUAD;
    if (s->block >= s->of->p->blocks) {
        s->block = ++s->sum;
    }
    return s->sum < OE_QUAD && s->block < s->of->p->blocks;
}

INLINE void store_tiles(const int halves, tile_dots *to) {
    _tile_stored(0, to->of[0][0], 64);
    _tile_stored(2, to->of[1][0], 64);
    if (halves == 2) {
        _tile_stored(1, to->of[0][16], 64);
        _tile_stored(3, to->of[1][16], 64);
    }
}

/* Adds up the products of a piece of 16 * halves rows at most. Tiles work on a step while the
 * sums of the one before are added up. */
INLINE void multiply_halves(const int halves, const piece *of) {
    const size_t stride = OE_QUAD * sizeof(act_block);
    const int64_t n = of->n;
    steps all = {.of = of};
    tile_dots dots;
    step now = oe_step(&all);
#pragma GCC unroll 4
    for (int part = 0; part < PARTS; part++) {
        multiply_part(halves, part, now.act, stride, now.panel);
    }
    for (bool more = true; more;) {
        store_tiles(halves, &dots);
        more = oe_next_step(&all);
        const step next = more ? oe_step(&all) : now; /* the last is multiplied once more, for nothing */
        const panel_scales scales = scales_of(now.panel);
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; part++) {
            multiply_part(halves, part, next.act, stride, next.panel);
            for (int64_t i = n * part / PARTS; i < n * (part + 1) / PARTS; i++) {
                add_dots(&scales, &dots, i, now.act + OE_QUAD * i, now.first, now.sums + i);
            }
        }
        now = next;
    }
}

INLINE void oe_multiply_piece(const piece *of) {
    if (of->n > 16) {
        multiply_halves(2, of);
    } else {
        multiply_halves(1, of);
    }
}
