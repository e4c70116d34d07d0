/* How tiles multiply a piece (amx_product.h) of weights in blocks of 32 (panel32.h): 16 rows of activations with up to
 * OE_CHUNK blocks of a panel in each step. These blocks belong to one of s0 to s3; its sums stay in registers.
 *
 * Three steps are at work at once, since what a tile stores cannot be read before it is in the L1 cache: while the dots
 * of one step are added up, those of the next take their place, block by block, and tiles multiply the one after. */

INLINE int64_t panel_index(const oe_sb_product *p, int64_t block, int group, int groups) {
    return (oe_chunk_of(p->blocks, block) * groups + group) * OE_CHUNK + block / OE_QUAD % OE_CHUNK;
}

/* Panels of 32 rows of activations. */
INLINE int64_t act_panels(const oe_sb_product *p) { return oe_chunks(p->blocks); }

/* Blocks of a panel, with those that are missing in the last chunks. */
INLINE int64_t panel_blocks(const oe_sb_product *p) { return act_panels(p) * OE_CHUNK; }

/* The panels of up to 32 rows, made at `to` where they are not there yet. */
static const act_panel *oe_packed_rows(const oe_sb_product *p, int64_t row, int64_t rows, act_panel *to) {
    if (p->packed) {
        return (const act_panel *)p->packed + row / 32 * act_panels(p);
    }
    const act_block *from = (const act_block *)p->acts + row * OE_QUAD;
    for (int64_t number = 0; number * OE_QUAD < p->blocks; number++, from += p->rows * OE_QUAD) {
        for (int64_t i = 0; i < rows; i++) {
            oe_pack_quad(from + i * OE_QUAD, p->blocks, number, i, to);
        }
    }
    oe_pack_zeros(p->blocks, rows, to);
    __asm__ volatile("" : : : "memory"); /* as in oe_unpack */
    return to;
}

/* 16 rows of activations, a panel, and what their products are added to. */
typedef struct step {
    const act_panel *acts;
    int64_t from; /* the first of the rows */
    const panel_block *panel;
    const floats *before;
    floats *sums;
    int64_t blocks; /* 0: nothing to do; OE_CHUNK at most */
} step;

/* Where the steps are: by half of the rows, then by group, then by chunk of a sum, then by sum. */
typedef struct place {
    const piece *of;
    const act_panel *acts;
    const panel_block *panel;
    floats *sums;
    int64_t block, sum, from;
    int group;
} place;

INLINE void go_on(place *x) {
    x->from += 16;
    if (x->from < x->of->n) {
        return;
    }
    x->from = 0;
    x->panel += OE_CHUNK;
    x->sums += 32;
    if (++x->group < x->of->groups) {
        return;
    }
    x->group = 0;
    x->acts++;
    x->block += OE_CHUNK * OE_QUAD;
    if (x->block >= x->of->p->blocks) {
        x->block = ++x->sum; /* its sums are the next ones */
    } else {
        x->sums -= x->of->groups * 32;
    }
}

static const floats no_sums[16];

INLINE step step_at(const place *x) {
    const int64_t blocks = (x->of->p->blocks - x->block + OE_QUAD - 1) / OE_QUAD;
    floats *const sums = x->sums + x->from;
    const floats *const before = x->block < OE_QUAD ? no_sums : sums;
    return (step){x->acts, x->from, x->panel, before, sums, blocks < OE_CHUNK ? blocks : OE_CHUNK};
}

/* Adds up `now`, stores `next`, and multiplies `later`. `whole`: all of them have OE_CHUNK blocks. */
INLINE void do_steps(const bool whole, const step *now, const step *next, const step *later, tile_dots *dots) {
    const step x = *now;
    const int8_t *const rows = later->acts->q[0][later->from][0];
    const panel_block *const later_panel = later->panel;
    floats sums[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        sums[i] = x.before[i];
    }
#pragma GCC unroll 4
    for (int b = 0; b < OE_CHUNK; b++) {
        if (whole || b < x.blocks) {
            add_block_dots(b, x.panel, dots, x.acts, x.from, sums);
        }
        if (whole || b < next->blocks) {
            store_block(b, dots);
        }
        if (whole || b < later->blocks) {
            multiply_block(b, rows, later_panel);
        }
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) {
        x.sums[i] = sums[i];
    }
}

/* Functions of their own, for which the CPU's registers suffice. */
__attribute__((noinline)) static void oe_do_whole_steps(const step *now, const step *next, const step *later,
                                                        tile_dots *dots) {
    do_steps(true, now, next, later, dots);
}
__attribute__((noinline)) static void oe_do_part_steps(const step *now, const step *next, const step *later,
                                                       tile_dots *dots) {
    do_steps(false, now, next, later, dots);
}

static void oe_multiply_piece(const piece *of) {
    int64_t left = act_panels(of->p) * of->groups * (of->n > 16 ? 2 : 1);
    place at = {.of = of, .acts = of->acts, .panel = of->panels, .sums = of->sums};
    tile_dots dots;
    step first = step_at(&at), second = first, third = first;
    step *now = &first, *next = &second, *later = &third;
#pragma GCC unroll 4
    for (int b = 0; b < OE_CHUNK; b++) {
        multiply_block(b, now->acts->q[0][now->from][0], now->panel);
        store_block(b, &dots);
    }
    second.blocks = 0;
    if (left > 1) {
        go_on(&at);
        second = step_at(&at);
#pragma GCC unroll 4
        for (int b = 0; b < OE_CHUNK; b++) {
            multiply_block(b, next->acts->q[0][next->from][0], next->panel);
        }
    }
    for (; left > 0; left--) {
        later->blocks = 0;
        if (left > 2) {
            go_on(&at);
            *later = step_at(&at);
        }
        if (now->blocks + next->blocks + later->blocks == 3 * OE_CHUNK) {
            oe_do_whole_steps(now, next, later, &dots);
        } else {
            oe_do_part_steps(now, next, later, &dots);
        }
        step *const done = now;
        now = next;
        next = later;
        later = done;
    }
}
