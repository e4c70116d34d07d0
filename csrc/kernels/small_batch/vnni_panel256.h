/* panel256.h with the vectors of AVX-512: codes without a sign, as VPDPBUSD takes them, and a factor for each part. */
#define ACROSS 2
#define PANEL_ROWS 6

typedef struct panel_block {
    ints codes[64];
    ints factor[FACTORS]; /* for dots of 16 bits with its low half alone */
    floats d;
#if WITH_MINIMA
    floats dmin;
#endif
    ints pairs[PAIRS]; /* 16 bits each, by part: the minima, or the factor times how much codes are above what counts */
} panel_block;

INLINE ints panel_factor(ints words, int j) { return part_factor(words, j); }
INLINE ints signed_panel_factor(ints words, int j) { return signed_part_factor(words, j); }

/* `pairs` undo what codes are above. */
INLINE void signed_codes(const int n, ints *codes, int above) {
    (void)n;
    (void)codes;
    (void)above;
}

INLINE void put_pairs(panel_block *x, const ints pairs[PAIRS]) {
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i++) {
        x->pairs[i] = pairs[i];
    }
}

#if WITH_MINIMA
INLINE void put_minima(panel_block *x, ints steps, const ints mins[PAIRS]) {
    x->d = half_low(steps);
    x->dmin = half_high(steps);
    put_pairs(x, mins);
}
#else
INLINE void put_factor(panel_block *x, floats d, const ints pairs[PAIRS]) {
    x->d = d;
    put_pairs(x, pairs);
}
#endif

#define DOTS_OF_16_BITS (4 * PART_WORDS * 127 * MOST < 1 << 15)

INLINE void put_part(panel_block *x, const int part, const ints *codes, ints factor) {
#pragma GCC unroll 8
    for (int i = 0; i < PART_WORDS; i++) {
        x->codes[PART_WORDS * part + i] = codes[i];
    }
    x->factor[part] = DOTS_OF_16_BITS ? ints_and(factor, ints_set(0xffff)) : factor;
}

INLINE void end_unpacking(panel_block *x) { (void)x; }

/* Adds the dots of a part, times its factor, to sum. */
INLINE void add_part_dots(const panel_block *const x[ACROSS], int part, const act_block *act,
                          ints (*sum)[PANEL_ROWS]) {
    const ints *const codes[ACROSS] = {x[0]->codes + PART_WORDS * part, x[1]->codes + PART_WORDS * part};
    const int8_t *const q = act->q + 4 * PART_WORDS * part;
    ints dot[ACROSS][PANEL_ROWS];
#pragma GCC unroll 2
    for (int a = 0; a < ACROSS; a++) {
        clear_sums(PANEL_ROWS, dot[a]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < PART_WORDS; i++) {
#pragma GCC unroll 8
        for (int n = 0; n < PANEL_ROWS; n++) {
            const ints word = act_word(false, q + n * OE_QUAD * (int)sizeof(act_block) + 4 * i, q);
#pragma GCC unroll 2
            for (int a = 0; a < ACROSS; a++) {
                dot[a][n] = ints_add_products_of_bytes(dot[a][n], codes[a][i], word);
            }
        }
    }
#pragma GCC unroll 2
    for (int a = 0; a < ACROSS; a++) {
        const ints factor = x[a]->factor[part];
#pragma GCC unroll 8
        for (int n = 0; n < PANEL_ROWS; n++) {
            sum[a][n] = DOTS_OF_16_BITS ? ints_add_pair_products(sum[a][n], dot[a][n], factor)
                                        : ints_add(sum[a][n], ints_multiply(dot[a][n], factor));
        }
    }
}

/* d * sum, less minima or what codes are above. */
INLINE floats block_product(const panel_block *x, ints sum, const act_block *act) {
    const ints least = times_sums(false, PAIRS, x->pairs, PART_SUMS(act), act);
#if WITH_MINIMA
    const floats most = floats_multiply(x->d, floats_from_ints(sum));
    return floats_subtract(most, floats_multiply(x->dmin, floats_from_ints(least)));
#else
    return floats_multiply(x->d, floats_from_ints(ints_subtract(sum, least)));
#endif
}

/* Adds the products of a block of each panel with PANEL_ROWS rows of activations to out. */
INLINE void multiply_block(const panel_block *const x[ACROSS], const act_block *act, floats (*out)[PANEL_ROWS]) {
    ints sum[ACROSS][PANEL_ROWS];
#pragma GCC unroll 2
    for (int a = 0; a < ACROSS; a++) {
        clear_sums(PANEL_ROWS, sum[a]);
    }
#pragma GCC unroll 1
    for (int part = 0; part < FACTORS; part++) {
        add_part_dots(x, part, act, sum);
    }
#pragma GCC unroll 2
    for (int a = 0; a < ACROSS; a++) {
#pragma GCC unroll 8
        for (int n = 0; n < PANEL_ROWS; n++) {
            const act_block *const q = act + OE_QUAD * n;
            add_scaled(false, block_product(x[a], sum[a][n], q), &q->d, q, out[a] + n);
        }
    }
}
