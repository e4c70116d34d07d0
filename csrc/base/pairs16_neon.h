/* pairs16.h with NEON: 16 pairs in four registers. */

typedef struct pairs {
    int16x8_t at[4];
} pairs;
typedef struct wholes {
    int32x4_t at[4];
} wholes;

#define EACH_QUARTER(type, expression)                                                                                 \
    type out;                                                                                                          \
    for (int i = 0; i < 4; i++) {                                                                                      \
        out.at[i] = (expression);                                                                                      \
    }                                                                                                                  \
    return out

INLINE pairs pairs_load(const int16_t *p) { EACH_QUARTER(pairs, vld1q_s16(p + 8 * i)); }

INLINE void pairs_store(int16_t *p, pairs x) {
    for (int i = 0; i < 4; i++) {
        vst1q_s16(p + 8 * i, x.at[i]);
    }
}

INLINE lanes pairs_as_lanes(pairs x) { EACH_QUARTER(lanes, vreinterpretq_f32_s16(x.at[i])); }

INLINE pairs pairs_set(const int16_t *p) {
    int32_t pair;
    memcpy(&pair, p, sizeof pair);
    EACH_QUARTER(pairs, vreinterpretq_s16_s32(vdupq_n_s32(pair)));
}

INLINE pairs pairs_of_halves(lanes a, lanes b) {
    EACH_QUARTER(pairs, vtrn1q_s16(vreinterpretq_s16_f32(a.at[i]), vreinterpretq_s16_f32(b.at[i])));
}

INLINE pairs pairs_magnitude(pairs x) { EACH_QUARTER(pairs, vandq_s16(x.at[i], vdupq_n_s16(INT16_MAX))); }
INLINE pairs pairs_larger(pairs a, pairs b) { EACH_QUARTER(pairs, vmaxq_s16(a.at[i], b.at[i])); }

INLINE void pairs_largest(const pairs *x, uint32_t *to) {
    for (int i = 0; i < OE_LANES; i++) {
        const int16x8_t most = vmaxq_s16(vmaxq_s16(x[i].at[0], x[i].at[1]), vmaxq_s16(x[i].at[2], x[i].at[3]));
        to[i] = (uint32_t)vmaxvq_s16(most);
    }
}

INLINE wholes wholes_zero(void) { EACH_QUARTER(wholes, vdupq_n_s32(0)); }

INLINE int32x4_t quarter_products(int16x8_t a, int16x8_t b) {
    return vpaddq_s32(vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
}

INLINE wholes wholes_add_products(wholes sum, pairs a, pairs b) {
    EACH_QUARTER(wholes, vaddq_s32(sum.at[i], quarter_products(a.at[i], b.at[i])));
}

INLINE lanes lanes_from_wholes(wholes x) { EACH_QUARTER(lanes, vcvtq_f32_s32(x.at[i])); }

INLINE int32_t wholes_sum(wholes x) {
    return vaddvq_s32(vaddq_s32(vaddq_s32(x.at[0], x.at[1]), vaddq_s32(x.at[2], x.at[3])));
}

INLINE int32x4_t joined_quarters(wholes x) {
    return vaddq_s32(vaddq_s32(x.at[0], x.at[1]), vaddq_s32(x.at[2], x.at[3]));
}

INLINE lanes wholes_sums(const wholes *x) {
    wholes out;
    for (int i = 0; i < 4; i++) {
        const int32x4_t low = vpaddq_s32(joined_quarters(x[4 * i]), joined_quarters(x[4 * i + 1]));
        const int32x4_t high = vpaddq_s32(joined_quarters(x[4 * i + 2]), joined_quarters(x[4 * i + 3]));
        out.at[i] = vpaddq_s32(low, high);
    }
    return lanes_from_wholes(out);
}
#undef EACH_QUARTER
