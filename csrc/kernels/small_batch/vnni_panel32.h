/* panel32.h with the vectors of AVX-512. Codes with a sign are stored 128 above it, without one, as VPDPBUSD takes
 * them; the activations' minus128 undoes that. */
#define ACROSS 2
#define PANEL_ROWS 6
#define TILES 1

INLINE void end_unpacking(panel_block *x) {
#ifdef WITH_MINIMUM
    (void)x; /* its codes have none */
#else
    ready_all_signed(x->codes);
#endif
}

INLINE ints first_dot(const act_block *act) {
#ifdef WITH_MINIMUM
    (void)act;
    return ints_set(0);
#else
    return act_word(false, &act->minus128, act);
#endif
}

INLINE void add_block_dot(const panel_block *x, ints dot, const act_block *act, floats *out) {
#ifdef WITH_MINIMUM
    add_scaled_from(false, x->d, dot, x->minus_eighth, act, out);
#else
    add_scaled(false, floats_multiply(x->d, floats_from_ints(dot)), &act->d, act, out);
#endif
}

/* Adds the products of a block of each panel with PANEL_ROWS rows of activations to out. */
INLINE void multiply_block(const panel_block *const x[ACROSS], const act_block *act, floats (*out)[PANEL_ROWS]) {
    ints dot[ACROSS][PANEL_ROWS];
#pragma GCC unroll 8
    for (int n = 0; n < PANEL_ROWS; n++) {
#pragma GCC unroll 2
        for (int a = 0; a < ACROSS; a++) {
            dot[a][n] = first_dot(act + OE_QUAD * n);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) {
#pragma GCC unroll 8
        for (int n = 0; n < PANEL_ROWS; n++) {
            const act_block *const q = act + OE_QUAD * n;
            const ints word = act_word(false, q->q + 4 * i, q);
#pragma GCC unroll 2
            for (int a = 0; a < ACROSS; a++) {
                dot[a][n] = ints_add_products_of_bytes(dot[a][n], x[a]->codes[i], word);
            }
        }
    }
#pragma GCC unroll 2
    for (int a = 0; a < ACROSS; a++) {
#pragma GCC unroll 8
        for (int n = 0; n < PANEL_ROWS; n++) {
            add_block_dot(x[a], dot[a][n], act + OE_QUAD * n, out[a] + n);
        }
    }
}
