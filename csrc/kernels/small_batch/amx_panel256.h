/* panel256.h with AMX. A code times its factor takes up to 14 bits. It is stored as 128 * high + low, in two tiles, so
 * that tiles add up a whole block. */
#define K_BLOCK 256
#define K_TILE 64
#define TOGETHER 8
#define COLUMN_GROUPS 8
#define PACKS false

typedef act_block act_panel;

/* The whole sums of a step, by tile of weights (low, high), row of activations and lane. */
typedef struct tile_dots {
    int32_t of[2][32][LANES] __attribute__((aligned(64)));
} tile_dots;

typedef struct panel_scales {
    floats d;
#if WITH_MINIMA
    floats dmin;
    ints mins[PAIRS];
#endif
} panel_scales;

typedef struct panel_block {
    ints low[64], high[64];
    panel_scales scales;
} panel_block;

INLINE panel_scales scales_of(const panel_block *x) { return x->scales; }

#if WITH_MINIMA
/* `steps` holds d in the low half of each lane and dmin in the high half. */
INLINE void put_minima(panel_block *x, ints steps, const ints mins[PAIRS]) {
    x->scales.d = half_low(steps);
    x->scales.dmin = half_high(steps);
#pragma GCC unroll 8
    for (int i = 0; i < PAIRS; i++) {
        x->scales.mins[i] = mins[i];
    }
}
#else
INLINE void put_factor(panel_block *x, floats d) { x->scales.d = d; }
#endif

/* Codes less what they are above. */
INLINE void signed_codes(const int n, ints *codes, int above) { subtract_from_all(n, codes, above); }

/* The words of a part: signed codes, 4 in each lane, times a factor, twice in each lane in 16 bits. */
INLINE void put_part(panel_block *x, const int part, const ints *codes, ints factor) {
    const __mmask64 odd_bytes = 0xaaaaaaaaaaaaaaaau;
#pragma GCC unroll 8
    for (int i = 0; i < PART_WORDS; i++) {
        const int at = PART_WORDS * part;
        const ints even = _mm512_mullo_epi16(_mm512_srai_epi16(_mm512_slli_epi16(codes[i], 8), 8), factor);
        const ints odd = _mm512_mullo_epi16(_mm512_srai_epi16(codes[i], 8), factor);
        const ints low = _mm512_mask_mov_epi8(even, odd_bytes, _mm512_slli_epi16(odd, 8));
        x->low[at + i] = ints_and(low, bytes_set(0x7f));
        x->high[at + i] = _mm512_mask_mov_epi8(_mm512_srli_epi16(even, 7), odd_bytes, _mm512_slli_epi16(odd, 1));
    }
}

/* Byte j of each lane, without or with its sign, twice in 16 bits. */
INLINE ints byte_twice(ints words, int j) {
    const int first = 0x00800080 + 0x01000100 * j;
    return bytes_pick(words, bytes_of_16(first, first + 0x04000400, first + 0x08000800, first + 0x0c000c00));
}
INLINE ints panel_factor(ints words, int j) { return shorts_shift_right(byte_twice(words, j), 8); }
INLINE ints signed_panel_factor(ints words, int j) { return shorts_shift_right_signed(byte_twice(words, j), 8); }

/* Part `s` of the product of a block and 16 * halves rows of activations, `stride` bytes apart. */
INLINE void multiply_part(const int halves, const int s, const oe_act256 *act, size_t stride, const panel_block *x) {
    if (s == 0) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    _tile_loadd(4, act->q + 64 * s, stride);
    _tile_loadd(6, x->low + 16 * s, 64);
    _tile_loadd(7, x->high + 16 * s, 64);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(2, 4, 7);
    if (halves == 2) {
        _tile_loadd(5, (const char *)act->q + 64 * s + 16 * stride, stride);
        _tile_dpbssd(1, 5, 6);
        _tile_dpbssd(3, 5, 7);
    }
}

/* *out += the block's product with the i-th row of activations, whose block is `act`. */
INLINE void add_dots(const panel_scales *x, const tile_dots *dots, int64_t i, const oe_act256 *act, bool first,
                     floats *out) {
    const ints low = _mm512_load_si512(dots->of[0][i]), high = _mm512_load_si512(dots->of[1][i]);
    floats sum = floats_multiply(x->d, floats_from_ints(ints_add(low, ints_shift_left(high, 7))));
#if WITH_MINIMA
    const ints least = times_sums(false, PAIRS, x->mins, PART_SUMS(act), act);
    sum = floats_subtract(sum, floats_multiply(x->dmin, floats_from_ints(least)));
#endif
    *out = first ? floats_set(0) : *out;
    add_scaled(false, sum, &act->d, act, out);
}
