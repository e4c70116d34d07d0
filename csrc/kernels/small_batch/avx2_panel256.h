/* panel256.h with AVX2's vectors, without VNNI. VPMADDUBSW takes one side without a sign, and adds two products in 16
 * bits: so codes are kept as they are read, and as many of these sums are added up as 16 bits hold before they are
 * multiplied with a factor. What codes of types without minima are above what counts, (MOST + 1) / 2 times the sums of
 * activations, is taken off as minima are. */
#define ACROSS 2
#define PANEL_ROWS 5 /* 4 and 6 are up to a tenth slower (measured on Zen 4) */
#define TILES 4

typedef struct panel_block {
    ints codes[64];
    ints factor[FACTORS]; /* 16 bits, twice in each lane */
    ints mins[PAIRS];     /* 16 bits each, by part; of types without minima, what codes are above times factors */
    floats d;
#if WITH_MINIMA
    floats dmin;
#endif
} panel_block;

INLINE ints panel_factor(ints words, int j) { return part_factor(words, j); }
INLINE ints signed_panel_factor(ints words, int j) { return signed_part_factor(words, j); }

INLINE void signed_codes(const int n, ints *codes, int above) { (void)n, (void)codes, (void)above; }

INLINE void put_part(panel_block *x, const int part, const ints *codes, ints factor) {
#pragma GCC unroll 8
    for (int i = 0; i < PART_WORDS; i++) {
        x->codes[PART_WORDS * part + i] = codes[i];
    }
    x->factor[part] = factor;
}

#if WITH_MINIMA
INLINE void put_minima(panel_block *x, ints steps, const ints mins[PAIRS]) {
    x->d = half_low(steps);
    x->dmin = half_high(steps);
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i++) {
        x->mins[i] = mins[i];
    }
}

INLINE void end_unpacking(panel_block *x) { (void)x; }
#else
INLINE void put_factor(panel_block *x, floats d) { x->d = d; }

INLINE void end_unpacking(panel_block *x) {
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i++) {
        const ints pair = ints_select(ints_set(0xffff), x->factor[2 * i], x->factor[2 * i + 1]);
        x->mins[i] = shorts_multiply(pair, shorts_set((MOST + 1) / 2));
    }
}
#endif

/* Adds the dots of a part, times its factor, to sum. */
INLINE void add_part_dots(const panel_block *const x[ACROSS], int part, const act_block *act,
                          ints (*sum)[PANEL_ROWS]) {
    const int fit = words_that_fit(MOST) < PART_WORDS ? words_that_fit(MOST) : PART_WORDS;
    const int8_t *const q = act->q + 4 * PART_WORDS * part;
#pragma GCC unroll 4
    for (int first = 0; first < PART_WORDS; first += fit) {
        ints dot[ACROSS][PANEL_ROWS];
#pragma GCC unroll 8
        for (int i = first; i < first + fit; i++) {
#pragma GCC unroll 8
            for (int n = 0; n < PANEL_ROWS; n++) {
                const ints word = act_word(false, q + n * OE_QUAD * (int)sizeof(act_block) + 4 * i, q);
#pragma GCC unroll 2
                for (int a = 0; a < ACROSS; a++) {
                    const ints pairs = shorts_products_of_bytes(x[a]->codes[PART_WORDS * part + i], word);
                    dot[a][n] = i == first ? pairs : shorts_add(dot[a][n], pairs);
                }
            }
        }
#pragma GCC unroll 2
        for (int a = 0; a < ACROSS; a++) {
#pragma GCC unroll 8
            for (int n = 0; n < PANEL_ROWS; n++) {
                sum[a][n] = ints_add(sum[a][n], ints_pair_products(dot[a][n], x[a]->factor[part]));
            }
        }
    }
}

/* d * sum, less minima. */
INLINE floats block_product(const panel_block *x, ints sum, const act_block *act) {
    const ints least = times_sums(false, PAIRS, x->mins, PART_SUMS(act), act);
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
