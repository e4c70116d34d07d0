/* panel256.h with the vectors of AVX-512, and a factor for each part. VPDPBUSD takes one side without a sign: of types
 * with minima that are the codes. Of others it is the activations, 128 above what they are; what that adds to a block's
 * sum depends on the weights alone, so that sums begin with as much less. */
#define ACROSS 2
#define PANEL_ROWS 6
#define TILES 4

typedef struct panel_block {
    ints codes[64];
    ints factor[FACTORS]; /* for dots of 16 bits with its low half alone */
    floats d;
#if WITH_MINIMA
    floats dmin;
    ints mins[PAIRS]; /* 16 bits each, by part */
#else
    ints start;
#endif
} panel_block;

INLINE ints panel_factor(ints words, int j) { return part_factor(words, j); }
INLINE ints signed_panel_factor(ints words, int j) { return signed_part_factor(words, j); }

/* Codes less what they are above. */
INLINE void signed_codes(const int n, ints *codes, int above) { subtract_from_all(n, codes, above); }

#if WITH_MINIMA
INLINE void put_minima(panel_block *x, ints steps, const ints mins[PAIRS]) {
    x->d = half_low(steps);
    x->dmin = half_high(steps);
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i++) {
        x->mins[i] = mins[i];
    }
}

INLINE ints panel_word(const int8_t *q) { return act_word(false, q, q); }
INLINE ints add_word(ints dot, ints codes, ints word) { return ints_add_products_of_bytes(dot, codes, word); }
INLINE ints first_sum(const panel_block *x) {
    (void)x;
    return ints_set(0);
}
#else
INLINE void put_factor(panel_block *x, floats d) {
    x->d = d;
    x->start = ints_set(0);
}

INLINE ints panel_word(const int8_t *q) { return ints_xor(act_word(false, q, q), bytes_set(0x80)); }
INLINE ints add_word(ints dot, ints codes, ints word) { return ints_add_products_of_bytes(dot, word, codes); }
INLINE ints first_sum(const panel_block *x) { return x->start; }
#endif

#define DOTS_OF_16_BITS (4 * PART_WORDS * (WITH_MINIMA ? 127 * MOST : 255 * (MOST + 1) / 2) < 1 << 15)

INLINE void put_part(panel_block *x, const int part, const ints *codes, ints factor) {
#if !WITH_MINIMA
    ints above = ints_set(0);
#pragma GCC unroll 8
    for (int i = 0; i < PART_WORDS; i++) {
        above = ints_add_products_of_bytes(above, bytes_set(0x80), codes[i]);
    }
    x->start = ints_subtract(x->start, ints_multiply(above, factor));
#endif
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
            const ints word = panel_word(q + n * OE_QUAD * (int)sizeof(act_block) + 4 * i);
#pragma GCC unroll 2
            for (int a = 0; a < ACROSS; a++) {
                dot[a][n] = add_word(dot[a][n], codes[a][i], word);
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

/* d * sum, less minima. */
INLINE floats block_product(const panel_block *x, ints sum, const act_block *act) {
    const floats most = floats_multiply(x->d, floats_from_ints(sum));
#if WITH_MINIMA
    const ints least = times_sums(false, PAIRS, x->mins, PART_SUMS(act), act);
    return floats_subtract(most, floats_multiply(x->dmin, floats_from_ints(least)));
#else
    (void)act;
    return most;
#endif
}

/* Adds the products of a block of each panel with PANEL_ROWS rows of activations to out. */
INLINE void multiply_block(const panel_block *const x[ACROSS], const act_block *act, floats (*out)[PANEL_ROWS]) {
    ints sum[ACROSS][PANEL_ROWS];
#pragma GCC unroll 2
    for (int a = 0; a < ACROSS; a++) {
#pragma GCC unroll 8
        for (int n = 0; n < PANEL_ROWS; n++) {
            sum[a][n] = first_sum(x[a]);
        }
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
