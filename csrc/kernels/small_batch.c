#include "kernels/small_batch.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "base/target_clones.h"
#include "base/cpu.h"
#include "base/f16.h"

/* -- f16 ----------------------------------------------------------------------------------------------------------- */

static uint32_t bits_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Rounds to nearest, ties to even, as the instructions do. */
uint16_t oe_f32_to_f16(float x) {
    const uint32_t bits = bits_of(x), sign = bits >> 16 & 0x8000u, size = bits & 0x7fffffffu;
    if (size > 0x7f800000u) {
        return (uint16_t)(sign | 0x7e00u);
    }
    if (size >= 0x477ff000u) { /* 65520 and more */
        return (uint16_t)(sign | 0x7c00u);
    }
    if (size < 0x38800000u) { /* below the least normal one, 2^-14: the sum's last bit is worth 2^-24 */
        return (uint16_t)(sign | (bits_of(float_of(size) + 0.5f) & 0x7ffu));
    }
    return (uint16_t)(sign | ((size + 0xfffu + (size >> 13 & 1u) - 0x38000000u) >> 13));
}

/* -- activations --------------------------------------------------------------------------------------------------- */

#define LANES 16 /* independent maxima, so that the compiler needs no leave to reorder float operations */

/* The largest |x|; NaNs do not count. n is a multiple of LANES. */
static inline float largest(const float *x, int n) {
    float max[LANES] = {0};
    for (int i = 0; i < n; i += LANES) {
        for (int j = 0; j < LANES; j++) {
            const float size = fabsf(x[i + j]);
            max[j] = size > max[j] ? size : max[j];
        }
    }
    for (int width = LANES / 2; width; width /= 2) {
        for (int j = 0; j < width; j++) {
            max[j] = max[j + width] > max[j] ? max[j + width] : max[j];
        }
    }
    return max[0];
}

/* The nearest whole number, ties to even, for |x| < 2^22: adding 1.5 * 2^23 leaves no bits below 1. NaN gives 0. (The
 * same arithmetic as ggml's, so that what lies beyond comes out as there.) */
static inline int8_t nearest(float x) {
    const int32_t whole = (int32_t)(bits_of(x + 12582912.0f) & 0x007fffffu) - 0x00400000;
    return (int8_t)(uint8_t)(whole < 127 ? whole : 127);
}

OE_TARGET_CLONES
void oe_sb_quantize256(const float *x, void *to) {
    oe_act256 *act = to;
    const float max = largest(x, 256);
    const float inverse = 127.0f / max;
    act->d = max > 0 ? 1.0f / inverse : 0.0f;
    for (int i = 0; i < 256; i++) {
        act->q[i] = max > 0 ? nearest(inverse * x[i]) : 0;
    }
    for (int j = 0; j < 16; j++) {
        int16_t sum = 0;
        for (int i = 0; i < 16; i++) {
            sum = (int16_t)(sum + act->q[16 * j + i]);
        }
        act->sum16[j] = sum;
    }
    for (int j = 0; j < 8; j++) {
        act->sum32[j] = (int16_t)(act->sum16[2 * j] + act->sum16[2 * j + 1]);
    }
}

OE_TARGET_CLONES
void oe_sb_quantize32(const float *x, void *to) {
    oe_act32 *act = to;
    const float max = largest(x, 32);
    const float inverse = max > 0 ? 127.0f / max : 0.0f;
    int32_t sum = 0;
    act->d = oe_f16_to_f32(oe_f32_to_f16(max / 127.0f));
    for (int i = 0; i < 32; i++) {
        act->q[i] = nearest(inverse * x[i]);
        sum += act->q[i];
    }
    act->minus8 = -8 * sum;
    act->minus128 = -128 * sum;
}

/* -- the scalar kernels, which all others must equal bit by bit ---------------------------------------------------- */

static float read_f16(const uint8_t *p) {
    uint16_t half;
    memcpy(&half, p, sizeof half);
    return oe_f16_to_f32(half);
}

static int32_t dot(const int8_t *codes, const int8_t *q, int n) {
    int32_t sum = 0;
    for (int i = 0; i < n; i++) {
        sum += codes[i] * q[i];
    }
    return sum;
}

typedef void (*unpack_block)(const uint8_t *block, void *unpacked);
typedef float (*block_product)(const void *unpacked, const void *act);

typedef struct q4k_block {
    float d, dmin;
    uint8_t scale[8], least[8];
    int8_t code[256];
} q4k_block;

static void q4k_unpack(const uint8_t *p, void *to) {
    q4k_block *x = to;
    const uint8_t *packed = p + 4, *codes = p + 16;
    x->d = read_f16(p);
    x->dmin = read_f16(p + 2);
    for (int j = 0; j < 4; j++) {
        x->scale[j] = packed[j] & 63;
        x->least[j] = packed[4 + j] & 63;
        x->scale[4 + j] = (uint8_t)((packed[8 + j] & 15) | (packed[j] >> 6) << 4);
        x->least[4 + j] = (uint8_t)(packed[8 + j] >> 4 | (packed[4 + j] >> 6) << 4);
    }
    for (int i = 0; i < 256; i++) {
        const uint8_t byte = codes[i / 64 * 32 + i % 32];
        x->code[i] = (int8_t)(i % 64 < 32 ? byte & 15 : byte >> 4);
    }
}

static float q4k_product(const void *unpacked, const void *to) {
    const q4k_block *x = unpacked;
    const oe_act256 *act = to;
    int32_t sum = 0, least = 0;
    for (int j = 0; j < 8; j++) {
        sum += x->scale[j] * dot(x->code + 32 * j, act->q + 32 * j, 32);
        least += x->least[j] * act->sum32[j];
    }
    return (x->d * (float)sum - x->dmin * (float)least) * act->d;
}

typedef struct q6k_block {
    float d;
    int8_t scale[16];
    int8_t code[256];
} q6k_block;

static void q6k_unpack(const uint8_t *p, void *to) {
    q6k_block *x = to;
    for (int i = 0; i < 256; i++) {
        const int half = i / 128, run = i % 128 / 32, at = i % 32;
        const uint8_t low = p[64 * half + 32 * (run % 2) + at], high = p[128 + 32 * half + at];
        x->code[i] = (int8_t)(((run < 2 ? low & 15 : low >> 4) | (high >> 2 * run & 3) << 4) - 32);
    }
    memcpy(x->scale, p + 192, 16);
    x->d = read_f16(p + 208);
}

static float q6k_product(const void *unpacked, const void *to) {
    const q6k_block *x = unpacked;
    const oe_act256 *act = to;
    int32_t sum = 0;
    for (int j = 0; j < 16; j++) {
        sum += x->scale[j] * dot(x->code + 16 * j, act->q + 16 * j, 16);
    }
    return x->d * (float)sum * act->d;
}

typedef struct simple_block {
    float d;
    int8_t code[32];
} simple_block;

static void q40_unpack(const uint8_t *p, void *to) {
    simple_block *x = to;
    x->d = read_f16(p);
    for (int i = 0; i < 16; i++) {
        x->code[i] = (int8_t)((p[2 + i] & 15) - 8);
        x->code[16 + i] = (int8_t)((p[2 + i] >> 4) - 8);
    }
}

static void q80_unpack(const uint8_t *p, void *to) {
    simple_block *x = to;
    x->d = read_f16(p);
    memcpy(x->code, p + 2, 32);
}

/* Two's power of an exponent byte, halved: codes are twice as large as E2M1's numbers, and so whole. */
static float half_power(uint8_t exponent) {
    return float_of(exponent < 2 ? 0x00200000u << exponent : (uint32_t)(exponent - 1) << 23);
}

static void mxfp4_unpack(const uint8_t *p, void *to) {
    static const int8_t twice[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
    simple_block *x = to;
    x->d = half_power(p[0]);
    for (int i = 0; i < 16; i++) {
        x->code[i] = twice[p[1 + i] & 15];
        x->code[16 + i] = twice[p[1 + i] >> 4];
    }
}

static float simple_product(const void *unpacked, const void *to) {
    const simple_block *x = unpacked;
    const oe_act32 *act = to;
    return x->d * (float)dot(x->code, act->q, 32) * act->d;
}

#define TILE 8 /* rows of activations whose sums are kept while a weight row is unpacked, block after block */

static inline void multiply_tile(const oe_sb_product *p, int64_t i, int64_t row, int64_t n_tile, size_t block_bytes,
                                 size_t act_bytes, unpack_block unpack, block_product product) {
    union {
        q4k_block q4k;
        q6k_block q6k;
        simple_block simple;
    } unpacked;
    const uint8_t *block = p->weights + (size_t)i * p->row_bytes;
    float sum[TILE][OE_QUAD] = {{0}};
    for (int64_t b = 0; b < p->blocks; b++, block += block_bytes) {
        const int64_t first = (b / OE_QUAD * p->rows + row) * OE_QUAD + b % OE_QUAD;
        unpack(block, &unpacked);
        for (int64_t n = 0; n < n_tile; n++) {
            const char *act = (const char *)p->acts + (size_t)(first + n * OE_QUAD) * act_bytes;
            sum[n][b % OE_QUAD] += product(&unpacked, act);
        }
    }
    for (int64_t n = 0; n < n_tile; n++) {
        oe_sb_out(p, row + n)[i] = (sum[n][0] + sum[n][1]) + (sum[n][2] + sum[n][3]);
    }
}

static inline void multiply(const oe_sb_product *p, int64_t first, int64_t last, size_t block_bytes, size_t act_bytes,
                            unpack_block unpack, block_product product) {
    for (int64_t i = first; i < last; i++) {
        for (int64_t row = 0; row < p->rows; row += TILE) {
            const int64_t n_tile = p->rows - row < TILE ? p->rows - row : TILE;
            multiply_tile(p, i, row, n_tile, block_bytes, act_bytes, unpack, product);
        }
    }
}

static void q4k_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    multiply(p, first, last, OE_Q4_K_BYTES, sizeof(oe_act256), q4k_unpack, q4k_product);
}

static void q6k_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    multiply(p, first, last, OE_Q6_K_BYTES, sizeof(oe_act256), q6k_unpack, q6k_product);
}

static void q40_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    multiply(p, first, last, OE_Q4_0_BYTES, sizeof(oe_act32), q40_unpack, simple_product);
}

static void q80_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    multiply(p, first, last, OE_Q8_0_BYTES, sizeof(oe_act32), q80_unpack, simple_product);
}

static void mxfp4_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    multiply(p, first, last, OE_MXFP4_BYTES, sizeof(oe_act32), mxfp4_unpack, simple_product);
}

/* -- the kernels of this build ------------------------------------------------------------------------------------- */

const oe_sb_kernel oe_sb_scalar[OE_SB_TYPES] = OE_SB_KERNELS(OE_SB_NONE);

static bool cpu_has(oe_sb_isa isa) {
    switch (isa) {
    case OE_SB_AVX2: return oe_cpu_has_avx2_fma_f16c();
    case OE_SB_AVX_VNNI: return oe_cpu_has_avx_vnni();
    case OE_SB_AVX512: return oe_cpu_has_avx512_vnni();
    default: return isa == OE_SB_SCALAR;
    }
}

bool oe_sb_compared(oe_sb_isa isa) {
#if defined(__x86_64__)
    return isa == OE_SB_AVX_VNNI || isa == OE_SB_AVX512 || (isa == OE_SB_AVX2 && !__builtin_cpu_supports("avx512f"));
#else
    (void)isa;
    return false;
#endif
}

const oe_sb_kernel *oe_sb_kernel_find(oe_sb_type type, oe_sb_isa isa, int64_t m) {
    static const oe_sb_kernel *const kernels[OE_SB_ISAS] = {oe_sb_scalar, oe_sb_avx2, oe_sb_avxvnni,
                                                              oe_sb_avx512};
    static const oe_sb_kernel *const floats[OE_SB_ISAS] = {
        [OE_SB_SCALAR] = oe_sb_floats_scalar,
        [OE_SB_AVX2] = oe_sb_floats_avx2,
        [OE_SB_AVX512] = oe_sb_floats_avx512,
    };
    const bool quantized = type < OE_SB_TYPES;
    const oe_sb_kernel *const *all = quantized ? kernels : floats;
    const int at = quantized ? (int)type : (int)type - OE_SB_F16;
    if (!cpu_has(isa) || !all[isa] || !all[isa][at].multiply) {
        return NULL;
    }
    return &all[m < OE_SB_GROUP ? OE_SB_SCALAR : isa][at];
}
