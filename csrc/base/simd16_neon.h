/* simd16.h with NEON: 16 floats in four registers. */
#include <arm_neon.h>

typedef struct lanes {
    float32x4_t at[4];
} lanes;

/* `expression` for each register i. */
#define EACH_QUARTER(expression)                                                                                       \
    lanes out;                                                                                                         \
    for (int i = 0; i < 4; i++) {                                                                                      \
        out.at[i] = (expression);                                                                                      \
    }                                                                                                                  \
    return out

INLINE lanes lanes_set(float x) { EACH_QUARTER(vdupq_n_f32(x)); }
INLINE lanes lanes_load(const float *p) { EACH_QUARTER(vld1q_f32(p + 4 * i)); }
INLINE lanes lanes_set_4(const float *p) { EACH_QUARTER(vld1q_f32(p)); }
INLINE void lanes_store(float *p, lanes x) {
    for (int i = 0; i < 4; i++) {
        vst1q_f32(p + 4 * i, x.at[i]);
    }
}
INLINE lanes lanes_add(lanes a, lanes b) { EACH_QUARTER(vaddq_f32(a.at[i], b.at[i])); }
INLINE lanes lanes_sub(lanes a, lanes b) { EACH_QUARTER(vsubq_f32(a.at[i], b.at[i])); }
INLINE lanes lanes_mul(lanes a, lanes b) { EACH_QUARTER(vmulq_f32(a.at[i], b.at[i])); }
INLINE lanes lanes_div(lanes a, lanes b) { EACH_QUARTER(vdivq_f32(a.at[i], b.at[i])); }
INLINE lanes lanes_sqrt(lanes x) { EACH_QUARTER(vsqrtq_f32(x.at[i])); }
INLINE lanes lanes_fma(lanes a, lanes b, lanes c) { EACH_QUARTER(vfmaq_f32(c.at[i], a.at[i], b.at[i])); }

/* Compared and not FMAX, which gives NaN where either is NaN. */
INLINE lanes lanes_max(lanes a, lanes b) {
    EACH_QUARTER(vbslq_f32(vcgtq_f32(a.at[i], b.at[i]), a.at[i], b.at[i]));
}

INLINE lanes lanes_unless_below(lanes x, float limit, lanes y) {
    const float32x4_t zero = vdupq_n_f32(0.0f);
    EACH_QUARTER(vbslq_f32(vcltq_f32(x.at[i], vdupq_n_f32(limit)), zero, y.at[i]));
}

INLINE lanes lanes_signed_as(lanes x, lanes y) {
    EACH_QUARTER(vbslq_f32(vdupq_n_u32(0x80000000u), y.at[i], x.at[i]));
}

INLINE lanes lanes_raised(lanes x, lanes shifted) {
    EACH_QUARTER(vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(x.at[i]),
                                                 vshlq_n_s32(vreinterpretq_s32_f32(shifted.at[i]), 23))));
}

INLINE lanes lanes_from_f16(const void *p) {
    EACH_QUARTER(vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8((const uint8_t *)p + 8 * i))));
}

INLINE lanes lanes_set_f16(uint16_t x) { EACH_QUARTER(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x)))); }

INLINE lanes lanes_from_bf16(const void *p) {
    EACH_QUARTER(vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8((const uint8_t *)p + 8 * i)), 16)));
}

INLINE float lanes_sum(lanes x) {
    const float32x4_t four = vaddq_f32(vaddq_f32(x.at[0], x.at[2]), vaddq_f32(x.at[1], x.at[3]));
    const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
    return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

/* Numbers are in the order that lanes_sum has; of NaN, anything. */
INLINE float lanes_largest(lanes x) {
    const float32x4_t four = vmaxq_f32(vmaxq_f32(x.at[0], x.at[2]), vmaxq_f32(x.at[1], x.at[3]));
    return vmaxvq_f32(four);
}
#undef EACH_QUARTER
