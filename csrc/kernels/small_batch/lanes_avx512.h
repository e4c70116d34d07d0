/* lanes.h with 16 lanes: AVX-512 F, BW, VL and VNNI. */
#define LANES 16

typedef __m512i ints; /* 16 numbers of 32 bits, 32 of 16 ("shorts") or 64 of 8 ("bytes") */
typedef __m512 floats;

INLINE ints ints_set(int32_t x) { return _mm512_set1_epi32(x); }
INLINE ints bytes_set(int x) { return _mm512_set1_epi8((char)x); }
INLINE ints bytes_of_16(int a, int b, int c, int d) { return _mm512_broadcast_i32x4(_mm_setr_epi32(a, b, c, d)); }
INLINE ints ints_repeat(const void *bytes_16) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)bytes_16));
}

INLINE ints ints_and(ints a, ints b) { return _mm512_and_si512(a, b); }
INLINE ints ints_or(ints a, ints b) { return _mm512_or_si512(a, b); }
INLINE ints ints_xor(ints a, ints b) { return _mm512_xor_si512(a, b); }
INLINE ints ints_select(ints mask, ints a, ints b) { /* bits of a where the mask has them, else of b */
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}
INLINE ints ints_add(ints a, ints b) { return _mm512_add_epi32(a, b); }
INLINE ints ints_subtract(ints a, ints b) { return _mm512_sub_epi32(a, b); }
INLINE ints ints_larger(ints a, ints b) { return _mm512_max_epi32(a, b); }
INLINE ints ints_multiply(ints a, ints b) { return _mm512_mullo_epi32(a, b); }
INLINE ints ints_shift_left(ints x, int n) { return _mm512_slli_epi32(x, (unsigned)n); }
INLINE ints ints_shift_right(ints x, int n) { return _mm512_srli_epi32(x, (unsigned)n); }
INLINE ints ints_shift_right_signed(ints x, int n) { return _mm512_srai_epi32(x, (unsigned)n); }
INLINE ints ints_where_less(ints x, ints limit, ints less, ints not_less) {
    return _mm512_mask_blend_epi32(_mm512_cmplt_epi32_mask(x, limit), not_less, less);
}

INLINE ints shorts_shift_right(ints x, int n) { return _mm512_srli_epi16(x, (unsigned)n); }
INLINE ints shorts_shift_right_signed(ints x, int n) { return _mm512_srai_epi16(x, (unsigned)n); }
/* Codes for tiles (amx_product.h), which are signed: each byte of n words less `excess`. */
INLINE void subtract_from_all(const int n, ints *words, int excess) {
#pragma GCC unroll 8
    for (int i = 0; i < n; i++) {
        words[i] = _mm512_sub_epi8(words[i], bytes_set(excess));
    }
}
INLINE ints bytes_add_where(ints x, ints bits, ints mask, ints more) { /* where any bit of the byte is in the mask */
    return _mm512_mask_add_epi8(x, _mm512_test_epi8_mask(bits, mask), x, more);
}
INLINE ints bytes_pick(ints from, ints index) { return _mm512_shuffle_epi8(from, index); }

INLINE ints two_bytes_on(ints x) { return _mm512_bsrli_epi128(x, 2); } /* each 16 */

INLINE ints unpack_low_32(ints a, ints b) { return _mm512_unpacklo_epi32(a, b); }
INLINE ints unpack_high_32(ints a, ints b) { return _mm512_unpackhi_epi32(a, b); }
INLINE ints unpack_low_64(ints a, ints b) { return _mm512_unpacklo_epi64(a, b); }
INLINE ints unpack_high_64(ints a, ints b) { return _mm512_unpackhi_epi64(a, b); }

/* sum + 4 products of unsigned bytes with signed ones in each lane; sum + 2 products of shorts. */
INLINE ints ints_add_products_of_bytes(ints sum, ints a, ints b) { return _mm512_dpbusd_epi32(sum, a, b); }
INLINE ints ints_add_pair_products(ints sum, ints a, ints b) { return _mm512_dpwssd_epi32(sum, a, b); }

INLINE floats floats_set(float x) { return _mm512_set1_ps(x); }
INLINE floats floats_from_ints(ints x) { return _mm512_cvtepi32_ps(x); }
INLINE floats floats_from_bits(ints x) { return _mm512_castsi512_ps(x); }
INLINE ints bits_of_floats(floats x) { return _mm512_castps_si512(x); }
INLINE floats floats_from_halves(ints words) { return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(words)); }
INLINE floats floats_add(floats a, floats b) { return _mm512_add_ps(a, b); }
INLINE floats floats_subtract(floats a, floats b) { return _mm512_sub_ps(a, b); }
INLINE floats floats_multiply(floats a, floats b) { return _mm512_mul_ps(a, b); }

/* 16 bytes each of the lanes j, 4 + j, 8 + j, 12 + j. Inserts leave more of the ports that products need; of small
 * blocks, which wait for memory, loads that merge are up to a fifth faster (measured on Zen 5). */
INLINE ints load_column(window w, size_t offset, size_t j) {
    const uint8_t *p = w.at + offset + j * w.near;
    ints x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)p));
#if defined(BLOCK_BYTES) && BLOCK_BYTES <= 34
    x = _mm512_mask_broadcast_i32x4(x, 0x00f0, _mm_loadu_si128((const __m128i *)(p + w.far)));
    x = _mm512_mask_broadcast_i32x4(x, 0x0f00, _mm_loadu_si128((const __m128i *)(p + 2 * w.far)));
    return _mm512_mask_broadcast_i32x4(x, 0xf000, _mm_loadu_si128((const __m128i *)(p + 3 * w.far)));
#else
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(p + w.far)), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(p + 2 * w.far)), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *)(p + 3 * w.far)), 3);
#endif
}

/* Adds up the four parts of 16 bytes of each sum: sum i is in part i of the result. */
INLINE ints fold_parts(const ints sum[4]) {
    ints pair[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) { /* parts of sum i and 2 + i by halves */
        const ints across = _mm512_alignr_epi64(sum[2 + i], sum[i], 4);
        pair[i] = ints_add(_mm512_mask_blend_epi64(0xf0, sum[i], sum[2 + i]), across);
    }
    const ints across = _mm512_permutex2var_epi64(pair[0], _mm512_setr_epi64(2, 3, 8, 9, 6, 7, 12, 13), pair[1]);
    return ints_add(_mm512_mask_blend_epi64(0xcc, pair[0], pair[1]), across);
}

/* Adds up the words of each 16 bytes: those of sum i are in word i. */
INLINE ints fold_words(const ints sum[4]) {
    ints pair[2];
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) { /* sum i and 2 + i */
        const ints across = _mm512_alignr_epi8(sum[2 + i], sum[i], 8);
        pair[i] = ints_add(_mm512_mask_blend_epi64(0xaa, sum[i], sum[2 + i]), across);
    }
    const ints across = _mm512_mask_shuffle_epi32(_mm512_srli_epi64(pair[0], 32), 0xaaaa, pair[1], 0xa0);
    return ints_add(_mm512_mask_blend_epi32(0xaaaa, pair[0], pair[1]), across);
}

/* -- four small blocks side by side -------------------------------------------------------------------------------- */

#if defined(BLOCK_BYTES) && BLOCK_BYTES <= 34
#define FOURS_IN_TWO /* what is read at once of a row's 4 blocks lies within two vectors */

typedef int16_t shorts
    __attribute__((vector_size(64)));

enum { ODD_BLOCKS = BLOCK_BYTES % 2, FOUR_BLOCKS = OE_QUAD * BLOCK_BYTES };

/* Where the two vectors begin that hold what lies at `from` of each block, up to 16 bytes. */
INLINE int low_of_fours(const int from) {
    return ODD_BLOCKS ? from : from + FOUR_BLOCKS - BLOCK_BYTES + 16 <= 128 ? 0 : FOUR_BLOCKS - 128;
}

INLINE int high_of_fours(const int from) {
    return ODD_BLOCKS ? from + 3 : FOUR_BLOCKS <= 128 ? FOUR_BLOCKS - 64 : low_of_fours(from) + 64;
}

/* Numbers of the pairs of bytes in these vectors: lane 4 * j + b has word j at `from` of block b. */
INLINE shorts index_of_fours(const int from) {
    const shorts n = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};
    const int16_t low = (int16_t)low_of_fours(from), high = (int16_t)high_of_fours(from), low_end = low + 64;
    const shorts block = n / 2 & 3, at = block * BLOCK_BYTES + n / 8 * 4 + n % 2 * 2 + (int16_t)from;
    const shorts in_low = ODD_BLOCKS ? (block & 1) == 0 : at < low_end;
    return (in_low & (at - low) / 2) | (~in_low & ((at - high) / 2 + 32));
}

#if BLOCK_BYTES > 24 /* Q8_0 waits for memory, and longer where its loads are wider than its codes (measured) */
/* load_words of a window in_fours, with 4 permutations and 8 shuffles: no 16 loads that are merged. (A single row of
 * activations is faster with those where weights come from memory.) */
INLINE void load_fours(window w, size_t offset, ints word[4]) {
    const int from = (int)offset;
    const ints index = (ints)index_of_fours(from);
    ints row[4], pair[4];
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        const uint8_t *p = w.at + i * w.far;
        const ints low = _mm512_loadu_si512(p + low_of_fours(from));
        row[i] = _mm512_permutex2var_epi16(low, index, _mm512_loadu_si512(p + high_of_fours(from)));
    }
    pair[0] = _mm512_shuffle_i32x4(row[0], row[1], 0x88);
    pair[1] = _mm512_shuffle_i32x4(row[0], row[1], 0xdd);
    pair[2] = _mm512_shuffle_i32x4(row[2], row[3], 0x88);
    pair[3] = _mm512_shuffle_i32x4(row[2], row[3], 0xdd);
    word[0] = _mm512_shuffle_i32x4(pair[0], pair[2], 0x88);
    word[1] = _mm512_shuffle_i32x4(pair[1], pair[3], 0x88);
    word[2] = _mm512_shuffle_i32x4(pair[0], pair[2], 0xdd);
    word[3] = _mm512_shuffle_i32x4(pair[1], pair[3], 0xdd);
}
#else
#define ROWS_OF_FOURS

/* A vector that is read once: GCC would read it again for each use, and half of all loads cross a cache line. */
INLINE ints load_once(const uint8_t *p) {
    ints x = _mm512_loadu_si512(p);
    __asm__("" : "+v"(x));
    return x;
}

/* The 16 bytes at `offset` of a row's blocks in each row[i], in the order of interleaved activations: no lane has a
 * block of its own, so that codes are multiplied as they are, and sums are turned, which are fewer (dots_of_rows). */
INLINE void load_fours(window w, size_t offset, ints row[4]) {
    const int from = (int)offset;
    const ints index = (ints)index_of_fours(from);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        const uint8_t *p = w.at + i * w.far;
        const ints low = load_once(p + low_of_fours(from)), high = load_once(p + high_of_fours(from));
        row[i] = _mm512_permutex2var_epi16(low, index, high);
    }
}

/* The word at `offset` of each block, in its lane. */
INLINE ints load_word_of_fours(window w, size_t offset) {
    const int from = (int)offset;
    const shorts first = index_of_fours(from); /* repeated for each row */
    const ints index = _mm512_broadcast_i32x4(_mm512_castsi512_si128((ints)first));
    ints words = ints_set(0);
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++) {
        const uint8_t *p = w.at + i * w.far;
        const ints low = load_once(p + low_of_fours(from)), high = load_once(p + high_of_fours(from));
        words = ints_or(words, _mm512_maskz_permutex2var_epi16((__mmask32)0xff << 8 * i, low, index, high));
    }
    return words;
}

/* The first byte of each block, of 17 bytes, shifted left by 21: byte b of every fourth word is that of block b. */
INLINE ints load_first_of_fours(window w) {
    const ints left = _mm512_setr_epi32(21, 21, 21, 21, 13, 13, 13, 13, 5, 5, 5, 5, 29, 29, 29, 29);
    const ints turn = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    ints words = _mm512_maskz_loadu_epi32(0x1111, w.at);
#pragma GCC unroll 4
    for (int i = 1; i < 4; i++) { /* row i in the words i, 4 + i, .. */
        words = _mm512_mask_loadu_epi32(words, (__mmask16)(0x1111 << i), w.at + (size_t)i * (w.far - 4));
    }
    const ints bytes = ints_and(_mm512_rolv_epi32(words, left), ints_set(0xff << 21));
    return _mm512_permutexvar_epi32(turn, bytes);
}

/* The products of 32 codes, of which load_fours read the first and the second half, with the interleaved
 * activations at q: each block's in its lane. */
INLINE ints dots_of_rows(const ints codes[8], const char *q) {
    const ints first = _mm512_loadu_si512(q), last = _mm512_loadu_si512(q + 64);
    ints sum[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        sum[i] = ints_add_products_of_bytes(ints_set(0), codes[i], first);
        sum[i] = ints_add_products_of_bytes(sum[i], codes[4 + i], last);
    }
    return fold_parts(sum);
}

/* add_fifth_bits to codes of load_fours. */
INLINE void add_fifth_bits_of_rows(ints bits, ints codes[8]) {
    const ints number = _mm512_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c, 0, 0x04040404, 0x08080808, 0x0c0c0c0c,
                                          0x01010101, 0x05050505, 0x09090909, 0x0d0d0d0d, 0x01010101, 0x05050505,
                                          0x09090909, 0x0d0d0d0d);
    const ints mask = _mm512_mask_blend_epi32(0xf0f0, ints_set(0x08040201), ints_set((int32_t)0x80402010));
    const ints row[4] = {_mm512_shuffle_i32x4(bits, bits, 0x00), _mm512_shuffle_i32x4(bits, bits, 0x55),
                         _mm512_shuffle_i32x4(bits, bits, 0xaa), _mm512_shuffle_i32x4(bits, bits, 0xff)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        codes[i] = bytes_add_where(codes[i], bytes_pick(row[i], number), mask, bytes_set(16));
        const ints behind = bytes_pick(row[i], ints_add(number, bytes_set(2)));
        codes[4 + i] = bytes_add_where(codes[4 + i], behind, mask, bytes_set(16));
    }
}
#endif
#endif

/* All lanes but the first `skip`. */
INLINE void store_lanes(float *to, int skip, floats x) {
    _mm512_mask_storeu_ps(to, (__mmask16)(0xffffu << skip), x);
}

/* The sums of each 4 lanes, (0 + 1) + (2 + 3), but the first `skip` of them. */
INLINE void store_sums_of_4(float *to, int skip, floats x) {
    const floats pairs = floats_add(x, _mm512_permute_ps(x, 0xb1));
    const floats sums = floats_add(pairs, _mm512_permute_ps(pairs, 0x4e));
    const __m128 rows = _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, sums));
    _mm_mask_storeu_ps(to, (__mmask8)(0xf << skip & 0xf), rows);
}
