/* lanes.h with 8 lanes in two registers: AArch64 with SDOT (the extension "dotprod"). */
#define LANES 8

typedef struct ints { /* 8 numbers of 32 bits, 16 of 16 ("shorts") or 32 of 8 ("bytes") */
    int32x4_t low, high;
} ints;
typedef struct floats {
    float32x4_t low, high;
} floats;

#define OF_BOTH(type, expression) ((type){expression(low), expression(high)})

INLINE ints ints_set(int32_t x) { return (ints){vdupq_n_s32(x), vdupq_n_s32(x)}; }
INLINE ints bytes_set(int x) { return ints_set((int32_t)(0x01010101u * (uint8_t)x)); }
INLINE ints bytes_of_16(int a, int b, int c, int d) {
    const int32x4_t x = {a, b, c, d};
    return (ints){x, x};
}
INLINE ints ints_repeat(const void *bytes_16) {
    const int32x4_t x = vreinterpretq_s32_u8(vld1q_u8(bytes_16));
    return (ints){x, x};
}

INLINE ints ints_and(ints a, ints b) { return (ints){a.low & b.low, a.high & b.high}; }
INLINE ints ints_or(ints a, ints b) { return (ints){a.low | b.low, a.high | b.high}; }
INLINE ints ints_xor(ints a, ints b) { return (ints){a.low ^ b.low, a.high ^ b.high}; }
#define SELECTED(part) vbslq_s32((uint32x4_t)mask.part, a.part, b.part)
INLINE ints ints_select(ints mask, ints a, ints b) { return OF_BOTH(ints, SELECTED); } /* a where the mask has bits */
#undef SELECTED
INLINE ints ints_add(ints a, ints b) { return (ints){vaddq_s32(a.low, b.low), vaddq_s32(a.high, b.high)}; }
INLINE ints ints_subtract(ints a, ints b) { return (ints){vsubq_s32(a.low, b.low), vsubq_s32(a.high, b.high)}; }
INLINE ints ints_larger(ints a, ints b) { return (ints){vmaxq_s32(a.low, b.low), vmaxq_s32(a.high, b.high)}; }
INLINE ints ints_multiply(ints a, ints b) { return (ints){vmulq_s32(a.low, b.low), vmulq_s32(a.high, b.high)}; }

/* Counts are constants once the callers are inlined; the operators take what no constant is before that. */
#define SHIFTED_RIGHT(part) (int32x4_t)((uint32x4_t)x.part >> n)
INLINE ints ints_shift_right(ints x, int n) { return OF_BOTH(ints, SHIFTED_RIGHT); }
#undef SHIFTED_RIGHT
#define SHIFTED_LEFT(part) (int32x4_t)((uint32x4_t)x.part << n)
INLINE ints ints_shift_left(ints x, int n) { return OF_BOTH(ints, SHIFTED_LEFT); }
#undef SHIFTED_LEFT
INLINE ints ints_shift_right_signed(ints x, int n) { return (ints){x.low >> n, x.high >> n}; }
#define SHIFTED_RIGHT(part) (int32x4_t)((uint16x8_t)x.part >> n)
INLINE ints shorts_shift_right(ints x, int n) { return OF_BOTH(ints, SHIFTED_RIGHT); }
#undef SHIFTED_RIGHT
#define SHIFTED_RIGHT(part) (int32x4_t)((int16x8_t)x.part >> n)
INLINE ints shorts_shift_right_signed(ints x, int n) { return OF_BOTH(ints, SHIFTED_RIGHT); }
#undef SHIFTED_RIGHT

#define WHERE_LESS(part) vbslq_s32(vcltq_s32(x.part, limit.part), less.part, not_less.part)
INLINE ints ints_where_less(ints x, ints limit, ints less, ints not_less) { return OF_BOTH(ints, WHERE_LESS); }
#undef WHERE_LESS

INLINE int32x4_t half_add_bytes_where(int32x4_t x, int32x4_t bits, int32x4_t mask, int32x4_t more) {
    const uint8x16_t all = vceqq_u8((uint8x16_t)(bits & mask), (uint8x16_t)mask);
    return (int32x4_t)((uint8x16_t)x + (all & (uint8x16_t)more));
}

INLINE ints bytes_add_where(ints x, ints bits, ints mask, ints more) { /* where the byte has all bits of the mask */
    return (ints){half_add_bytes_where(x.low, bits.low, mask.low, more.low),
                  half_add_bytes_where(x.high, bits.high, mask.high, more.high)};
}

#define PICKED(part) vreinterpretq_s32_u8(vqtbl1q_u8((uint8x16_t)from.part, (uint8x16_t)index.part))
INLINE ints bytes_pick(ints from, ints index) { return OF_BOTH(ints, PICKED); } /* 0 for an index above 15 */
#undef PICKED

#define TWO_ON(part) vreinterpretq_s32_u8(vextq_u8((uint8x16_t)x.part, (uint8x16_t)x.part, 2))
INLINE ints two_bytes_on(ints x) { return OF_BOTH(ints, TWO_ON); }
#undef TWO_ON

INLINE ints unpack_low_32(ints a, ints b) { return (ints){vzip1q_s32(a.low, b.low), vzip1q_s32(a.high, b.high)}; }
INLINE ints unpack_high_32(ints a, ints b) { return (ints){vzip2q_s32(a.low, b.low), vzip2q_s32(a.high, b.high)}; }
#define ZIPPED(part) vreinterpretq_s32_s64(vzip1q_s64((int64x2_t)a.part, (int64x2_t)b.part))
INLINE ints unpack_low_64(ints a, ints b) { return OF_BOTH(ints, ZIPPED); }
#undef ZIPPED
#define ZIPPED(part) vreinterpretq_s32_s64(vzip2q_s64((int64x2_t)a.part, (int64x2_t)b.part))
INLINE ints unpack_high_64(ints a, ints b) { return OF_BOTH(ints, ZIPPED); }
#undef ZIPPED

/* sum + 4 products of signed bytes in each lane. */
#define WITH_PRODUCTS(part) vdotq_s32(sum.part, (int8x16_t)a.part, (int8x16_t)b.part)
INLINE ints ints_add_products_of_bytes(ints sum, ints a, ints b) { return OF_BOTH(ints, WITH_PRODUCTS); }
#undef WITH_PRODUCTS

INLINE int32x4_t half_pair_products(int16x8_t a, int16x8_t b) {
    return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}

/* sum + 2 products of shorts in each lane. */
INLINE ints ints_add_pair_products(ints sum, ints a, ints b) {
    return (ints){vaddq_s32(sum.low, half_pair_products((int16x8_t)a.low, (int16x8_t)b.low)),
                  vaddq_s32(sum.high, half_pair_products((int16x8_t)a.high, (int16x8_t)b.high))};
}

INLINE floats floats_set(float x) { return (floats){vdupq_n_f32(x), vdupq_n_f32(x)}; }
INLINE floats floats_from_ints(ints x) { return (floats){vcvtq_f32_s32(x.low), vcvtq_f32_s32(x.high)}; }
INLINE floats floats_from_bits(ints x) {
    return (floats){vreinterpretq_f32_s32(x.low), vreinterpretq_f32_s32(x.high)};
}
INLINE ints bits_of_floats(floats x) { return (ints){vreinterpretq_s32_f32(x.low), vreinterpretq_s32_f32(x.high)}; }

#define FROM_HALVES(part) vcvt_f32_f16(vreinterpret_f16_s16(vmovn_s32(words.part)))
INLINE floats floats_from_halves(ints words) { return OF_BOTH(floats, FROM_HALVES); } /* of the low half of each lane */
#undef FROM_HALVES

INLINE floats floats_add(floats a, floats b) { return (floats){vaddq_f32(a.low, b.low), vaddq_f32(a.high, b.high)}; }
INLINE floats floats_subtract(floats a, floats b) {
    return (floats){vsubq_f32(a.low, b.low), vsubq_f32(a.high, b.high)};
}
INLINE floats floats_multiply(floats a, floats b) {
    return (floats){vmulq_f32(a.low, b.low), vmulq_f32(a.high, b.high)};
}

/* 16 bytes each of the lanes j and 4 + j. */
INLINE ints load_column(window w, size_t offset, size_t j) {
    const uint8_t *p = w.at + offset + j * w.near;
    return (ints){vreinterpretq_s32_u8(vld1q_u8(p)), vreinterpretq_s32_u8(vld1q_u8(p + w.far))};
}

/* All lanes but the first `skip`. */
INLINE void store_lanes(float *to, int skip, floats x) {
    float lane[LANES];
    vst1q_f32(lane, x.low);
    vst1q_f32(lane + 4, x.high);
    memcpy(to + skip, lane + skip, (size_t)(LANES - skip) * sizeof *lane);
}

/* The sums of each 4 lanes, (0 + 1) + (2 + 3), but the first `skip` (0 or 1) of them. */
INLINE void store_sums_of_4(float *to, int skip, floats x) {
    const float32x4_t pairs = vpaddq_f32(x.low, x.high);
    const float32x4_t sums = vpaddq_f32(pairs, pairs);
    if (!skip) {
        to[0] = vgetq_lane_f32(sums, 0);
    }
    to[1] = vgetq_lane_f32(sums, 1);
}
#undef OF_BOTH
