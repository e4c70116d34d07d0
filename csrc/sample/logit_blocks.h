/* What logit_kernels.c does with one block of OE_BLOCK logits; compiled with it, once for each instruction set. */
#ifndef OE_LOGIT_BLOCKS_H
#define OE_LOGIT_BLOCKS_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "base/float_bits.h"
#include "sample/logit_kernels.h"

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#define INLINE static inline __attribute__((always_inline))
#define CHUNK 16 /* blocks whose largest entries are found together */
#define LANES 16 /* independent maxima, so that the compiler needs no leave to reorder float operations */

/* exp(-d) = 2^n * exp(r), |r| <= ln(2)/2, by the Taylor series to r^7 (remainder 6e-9). No branch, no library. */
static inline float oe_exp_minus(float d) {
    const float magic = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer in the low bits */
    const float shifted = -d * 1.44269504f + magic;
    const float n = shifted - magic;
    const float r = (-d - n * 0.693359375f) - n * -2.12194440e-4f; /* ln 2 in two parts; the first times n is exact */
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * oe_float_of_bits((oe_float_bits(shifted) - oe_float_bits(magic) + 127u) << 23);
}

/* round(e * 2^40) for 0 <= e <= 1: with 2^12 added, the last bit of the double is 2^-40. */
static inline uint64_t oe_fixed_point(float e) {
    const double shifted = (double)e + 4096.0;
    uint64_t bits;
    memcpy(&bits, &shifted, sizeof bits);
    return bits & (((uint64_t)1 << 52) - 1);
}

/* Block `b` of x; a last one that is not full is padded with -inf, which has weight 0. */
static inline const float *oe_padded_block(const float *x, int32_t n, int32_t b, float *padded) {
    const int32_t start = b * OE_BLOCK;
    if (n - start >= OE_BLOCK) {
        return x + start;
    }
    for (int32_t j = 0; j < OE_BLOCK; j++) {
        padded[j] = start + j < n ? x[start + j] : -INFINITY;
    }
    return padded;
}

/* kept[j] = x[j] where bit j of `allowed` is set, else -inf. */
static inline void oe_block_keep(const float *x, uint64_t allowed, float *restrict kept) {
#if defined(__AVX512F__)
    for (int j = 0; j < OE_BLOCK; j += 16) {
        const __mmask16 bits = (__mmask16)(allowed >> j);
        _mm512_storeu_ps(kept + j, _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), bits, x + j));
    }
#else
    /* A table, so that each lane's test is one `and`: SSE2 cannot shift each lane by a number of its own. */
    static const uint32_t bit[32] = {
        1u << 0,  1u << 1,  1u << 2,  1u << 3,  1u << 4,  1u << 5,  1u << 6,  1u << 7,  1u << 8,  1u << 9,  1u << 10,
        1u << 11, 1u << 12, 1u << 13, 1u << 14, 1u << 15, 1u << 16, 1u << 17, 1u << 18, 1u << 19, 1u << 20, 1u << 21,
        1u << 22, 1u << 23, 1u << 24, 1u << 25, 1u << 26, 1u << 27, 1u << 28, 1u << 29, 1u << 30, 1u << 31};
    for (int half = 0; half < OE_BLOCK; half += 32) {
        const uint32_t word = (uint32_t)(allowed >> half);
        for (int j = 0; j < 32; j++) {
            const uint32_t yes = word & bit[j] ? ~(uint32_t)0 : 0;
            const uint32_t bits = (oe_float_bits(x[half + j]) & yes) | (0xff800000u & ~yes);
            memcpy(kept + half + j, &bits, sizeof bits);
        }
    }
#endif
}

/* Block `b` of the row, with -inf for what is disallowed or beyond its end; `copy` holds it where it is not as in x. */
static inline const float *oe_block_of(const oe_logits *row, int32_t b, float *copy) {
    float padded[OE_BLOCK];
    if (!row->mask) {
        return oe_padded_block(row->x, row->n, b, copy);
    }
    const uint64_t allowed = oe_allowed(row->mask, row->n, b);
    if (allowed == ~(uint64_t)0) {
        return row->x + b * OE_BLOCK;
    }
    oe_block_keep(oe_padded_block(row->x, row->n, b, padded), allowed, copy);
    return copy;
}

/* Bit j is flag[j], each 0 or 1. */
static inline uint64_t oe_bits_of(const uint8_t *flag) {
#if defined(__AVX512BW__)
    const __m512i flags = _mm512_loadu_si512(flag);
    return _mm512_test_epi8_mask(flags, flags);
#else
    uint64_t bits = 0;
#if defined(__SSE2__)
    for (int j = 0; j < OE_BLOCK; j += 16) {
        const __m128i flags = _mm_loadu_si128((const __m128i *)(const void *)(flag + j));
        bits |= (uint64_t)(uint32_t)_mm_movemask_epi8(_mm_slli_epi16(flags, 7)) << j;
    }
#elif __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    for (int j = 0; j < OE_BLOCK; j += 8) { /* byte i times 2^(56 - 7i) is bit 56 + i; no other product is there */
        uint64_t flags;
        memcpy(&flags, flag + j, sizeof flags);
        bits |= (flags * 0x0102040810204080u >> 56) << j;
    }
#else
    for (int j = 0; j < OE_BLOCK; j++) {
        bits |= (uint64_t)flag[j] << j;
    }
#endif
    return bits;
#endif
}

/* -- one block ----------------------------------------------------------------------------------------------------- */

/* Adds the whole blocks in x[n], and then what is left, to sum[LANES]. */
INLINE void oe_add_entries(const float *restrict x, int32_t n, float *restrict sum) {
    int32_t i = 0;
    for (; i + OE_BLOCK <= n; i += OE_BLOCK) {
        for (int j = 0; j < LANES; j++) {
            sum[j] += (x[i + j] + x[i + j + LANES]) + (x[i + j + 2 * LANES] + x[i + j + 3 * LANES]);
        }
    }
    for (; i < n; i++) {
        sum[0] += x[i];
    }
}

/* Four of the block's entries, the largest among them. */
INLINE void oe_block_largest(const float *restrict x, float *restrict four) {
    float max[LANES];
    for (int j = 0; j < LANES; j++) {
        const float p = x[j], q = x[j + LANES], r = x[j + 2 * LANES], s = x[j + 3 * LANES];
        const float pq = p > q ? p : q, rs = r > s ? r : s;
        max[j] = pq > rs ? pq : rs;
    }
    for (int j = 0; j < 4; j++) {
        const float a = max[j] > max[j + 4] ? max[j] : max[j + 4];
        const float b = max[j + 8] > max[j + 12] ? max[j + 8] : max[j + 12];
        four[j] = a > b ? a : b;
    }
}

/* max[i]: the largest of four[4 * i] .. four[4 * i + 3], for so many blocks that the compiler needs no scalars. */
INLINE void oe_chunk_maxima(const float *restrict four, float *restrict max) {
    float two[2 * CHUNK];
    for (int i = 0; i < 2 * CHUNK; i++) {
        two[i] = four[2 * i] > four[2 * i + 1] ? four[2 * i] : four[2 * i + 1];
    }
    for (int i = 0; i < CHUNK; i++) {
        max[i] = two[2 * i] > two[2 * i + 1] ? two[2 * i] : two[2 * i + 1];
    }
}

/* Two loops, because the first is about 32-bit and the second about 64-bit lanes. */
static inline void oe_block_weigh(const float *restrict x, oe_scale scale, uint32_t *restrict rank,
                               uint64_t *restrict weight) {
    float e[OE_BLOCK];
    for (int j = 0; j < OE_BLOCK; j++) {
        const float d = oe_distance(x[j], scale);
        rank[j] = oe_rank_of_distance(d);
        e[j] = oe_exp_minus(d);
    }
    for (int j = 0; j < OE_BLOCK; j++) {
        weight[j] = oe_fixed_point(e[j]);
    }
}

static inline bool oe_is_member(uint32_t rank, oe_window window) { return rank - window.first <= window.span; }

/* Bit j: whether entry j is in the window. */
static inline uint64_t oe_block_members(const float *restrict x, oe_scale scale, oe_window window) {
    uint8_t flag[OE_BLOCK];
    for (int j = 0; j < OE_BLOCK; j++) {
        flag[j] = oe_is_member(oe_rank(x[j], scale), window);
    }
    return oe_bits_of(flag);
}

static inline uint64_t oe_ranks_members(const uint32_t *restrict rank, oe_window window) {
    uint8_t flag[OE_BLOCK];
    for (int j = 0; j < OE_BLOCK; j++) {
        flag[j] = oe_is_member(rank[j], window);
    }
    return oe_bits_of(flag);
}

/* The bin that a rank of the window goes into; some bin for any other. Where another thread rewrites the row, members
 * and ranks may be of different values, because each is computed from a read of its own. */
static inline uint32_t oe_bin_of(uint32_t rank, oe_window window, int shift) {
    return (rank - window.first) >> shift & (OE_DIST_BINS - 1);
}

static inline void oe_block_bin(const uint32_t *rank, const uint64_t *weight, uint64_t members, oe_window window,
                             int shift, uint64_t (*bins)[OE_BIN_COPIES]) {
    if (members == ~(uint64_t)0) {
        for (int j = 0; j < OE_BLOCK; j += OE_BIN_COPIES) {
            for (int c = 0; c < OE_BIN_COPIES; c++) {
                bins[oe_bin_of(rank[j + c], window, shift)][c] += weight[j + c];
            }
        }
        return;
    }
    for (; members; members &= members - 1) {
        const int j = __builtin_ctzll(members);
        bins[oe_bin_of(rank[j], window, shift)][j % OE_BIN_COPIES] += weight[j];
    }
}

/* Whether all of block `b` is less probable than what the window holds. */
static inline bool oe_is_behind(const oe_logits *row, int32_t b, oe_scale scale, oe_window window) {
    return oe_rank(row->block_max[b], scale) > window.first + window.span;
}

#endif
