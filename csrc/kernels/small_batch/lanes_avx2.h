/* lanes.h with 8 lanes: AVX2 and F16C, with or without AVX-VNNI. */
#define LANES 8

typedef __m256i ints; /* 8 numbers of 32 bits, 16 of 16 ("shorts") or 32 of 8 ("bytes") */
typedef __m256 floats;

INLINE ints ints_set(int32_t x) { return _mm256_set1_epi32(x); }
INLINE ints shorts_set(int16_t x) { return _mm256_set1_epi16(x); }
INLINE ints bytes_set(int x) { return _mm256_set1_epi8((char)x); }
INLINE ints bytes_of_16(int a, int b, int c, int d) { return _mm256_broadcastsi128_si256(_mm_setr_epi32(a, b, c, d)); }
INLINE ints ints_repeat(const void *bytes_16) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)bytes_16));
}

INLINE ints ints_and(ints a, ints b) { return _mm256_and_si256(a, b); }
INLINE ints ints_or(ints a, ints b) { return _mm256_or_si256(a, b); }
INLINE ints ints_xor(ints a, ints b) { return _mm256_xor_si256(a, b); }
INLINE ints ints_select(ints mask, ints a, ints b) { /* bits of a where the mask has them, else of b */
    return _mm256_or_si256(_mm256_and_si256(mask, a), _mm256_andnot_si256(mask, b));
}
INLINE ints ints_add(ints a, ints b) { return _mm256_add_epi32(a, b); }
INLINE ints ints_subtract(ints a, ints b) { return _mm256_sub_epi32(a, b); }
INLINE ints ints_larger(ints a, ints b) { return _mm256_max_epi32(a, b); }
INLINE ints ints_multiply(ints a, ints b) { return _mm256_mullo_epi32(a, b); }
INLINE ints ints_shift_left(ints x, int n) { return _mm256_slli_epi32(x, n); }
INLINE ints ints_shift_right(ints x, int n) { return _mm256_srli_epi32(x, n); }
INLINE ints ints_shift_right_signed(ints x, int n) { return _mm256_srai_epi32(x, n); }
INLINE ints ints_where_less(ints x, ints limit, ints less, ints not_less) {
    return _mm256_blendv_epi8(not_less, less, _mm256_cmpgt_epi32(limit, x));
}

INLINE ints shorts_add(ints a, ints b) { return _mm256_add_epi16(a, b); }
INLINE ints shorts_multiply(ints a, ints b) { return _mm256_mullo_epi16(a, b); } /* the low halves */
INLINE ints shorts_shift_right(ints x, int n) { return _mm256_srli_epi16(x, n); }
INLINE ints shorts_shift_right_signed(ints x, int n) { return _mm256_srai_epi16(x, n); }
INLINE ints bytes_add_where(ints x, ints bits, ints mask, ints more) { /* where the byte has all bits of the mask */
    return _mm256_add_epi8(x, _mm256_and_si256(_mm256_cmpeq_epi8(_mm256_and_si256(bits, mask), mask), more));
}
INLINE ints bytes_pick(ints from, ints index) { return _mm256_shuffle_epi8(from, index); }
INLINE ints bytes_size(ints x) { return _mm256_abs_epi8(x); }
INLINE ints bytes_with_sign(ints x, ints sign) { return _mm256_sign_epi8(x, sign); }

INLINE ints two_bytes_on(ints x) { return _mm256_bsrli_epi128(x, 2); } /* each 16 */

INLINE ints unpack_low_32(ints a, ints b) { return _mm256_unpacklo_epi32(a, b); }
INLINE ints unpack_high_32(ints a, ints b) { return _mm256_unpackhi_epi32(a, b); }
INLINE ints unpack_low_64(ints a, ints b) { return _mm256_unpacklo_epi64(a, b); }
INLINE ints unpack_high_64(ints a, ints b) { return _mm256_unpackhi_epi64(a, b); }

/* 2 products of unsigned bytes with signed ones in each short; 2 products of shorts in each lane. */
INLINE ints shorts_products_of_bytes(ints a, ints b) { return _mm256_maddubs_epi16(a, b); }
INLINE ints ints_pair_products(ints a, ints b) { return _mm256_madd_epi16(a, b); }

/* sum + 4 products of unsigned bytes with signed ones in each lane; sum + 2 products of shorts. */
#if defined(__AVXVNNI__)
INLINE ints ints_add_products_of_bytes(ints sum, ints a, ints b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }
INLINE ints ints_add_pair_products(ints sum, ints a, ints b) { return _mm256_dpwssd_avx_epi32(sum, a, b); }
#else
INLINE ints ints_add_pair_products(ints sum, ints a, ints b) { return ints_add(sum, ints_pair_products(a, b)); }
#endif

INLINE floats floats_set(float x) { return _mm256_set1_ps(x); }
INLINE floats floats_from_ints(ints x) { return _mm256_cvtepi32_ps(x); }
INLINE floats floats_from_bits(ints x) { return _mm256_castsi256_ps(x); }
INLINE ints bits_of_floats(floats x) { return _mm256_castps_si256(x); }

/* Of the low half of each lane. */
INLINE floats floats_from_halves(ints words) {
    const ints low = ints_and(words, ints_set(0xffff));
    const ints packed = _mm256_packus_epi32(low, low); /* each half: its 4 numbers twice */
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0x08)));
}

INLINE floats floats_add(floats a, floats b) { return _mm256_add_ps(a, b); }
INLINE floats floats_subtract(floats a, floats b) { return _mm256_sub_ps(a, b); }
INLINE floats floats_multiply(floats a, floats b) { return _mm256_mul_ps(a, b); }

/* 16 bytes each of the lanes j and 4 + j. */
INLINE ints load_column(window w, size_t offset, size_t j) {
    const uint8_t *p = w.at + offset + j * w.near;
    const ints x = _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)p));
    return _mm256_inserti128_si256(x, _mm_loadu_si128((const __m128i *)(p + w.far)), 1);
}

/* All lanes but the first `skip`. */
INLINE void store_lanes(float *to, int skip, floats x) {
    float lane[LANES];
    _mm256_storeu_ps(lane, x);
    memcpy(to + skip, lane + skip, (size_t)(LANES - skip) * sizeof *lane);
}

/* The sums of each 4 lanes, (0 + 1) + (2 + 3), but the first `skip` (0 or 1) of them. */
INLINE void store_sums_of_4(float *to, int skip, floats x) {
    const floats pairs = floats_add(x, _mm256_permute_ps(x, 0xb1));
    const floats sums = floats_add(pairs, _mm256_permute_ps(pairs, 0x4e));
    if (!skip) {
        to[0] = _mm256_cvtss_f32(sums);
    }
    to[1] = _mm_cvtss_f32(_mm256_extractf128_ps(sums, 1));
}
