#include "kernels/hadamard.h"

#include <math.h>
#include <string.h>

#include "base/target_clones.h"
#include "ggml.h"

#define SHARE 4096 /* fewest numbers per thread: fewer take less time than sharing them out */

typedef float floats __attribute__((vector_size(4 * OE_HADAMARD_MIN)));

/* v[i ^ step] + v[i] where i has that bit clear, and minus v[i] where it is set: sums and differences of pairs. */
#define PAIRS(v, step, s)                                                                                              \
    (__builtin_shufflevector(v, v, 0 ^ step, 1 ^ step, 2 ^ step, 3 ^ step, 4 ^ step, 5 ^ step, 6 ^ step, 7 ^ step,     \
                             8 ^ step, 9 ^ step, 10 ^ step, 11 ^ step, 12 ^ step, 13 ^ step, 14 ^ step, 15 ^ step) +   \
     (v) * (s))

/* The first four of log2(block) stages lie within one vector, the others pair vectors. */
static inline void rotate(const float *x, float *y, int block, float scale) {
    const floats s1 = {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1};
    const floats s2 = {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1};
    const floats s4 = {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1};
    const floats s8 = {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1};
    floats v[OE_HADAMARD_MAX / OE_HADAMARD_MIN];
    const int n = block / OE_HADAMARD_MIN;
    memcpy(v, x, (size_t)block * sizeof(float));
    for (int i = 0; i < n; i++) {
        floats a = v[i];
        a = PAIRS(a, 1, s1);
        a = PAIRS(a, 2, s2);
        a = PAIRS(a, 4, s4);
        v[i] = PAIRS(a, 8, s8);
    }
    for (int step = 1; step < n; step *= 2) {
        for (int i = 0; i < n; i++) {
            if ((i & step) == 0) {
                const floats a = v[i], b = v[i + step];
                v[i] = a + b;
                v[i + step] = a - b;
            }
        }
    }
    for (int i = 0; i < n; i++) {
        v[i] *= scale;
    }
    memcpy(y, v, (size_t)block * sizeof(float));
}

OE_TARGET_CLONES void oe_hadamard(const float *x, float *y, int64_t n, int block) {
    const float scale = 1.0f / sqrtf((float)block);
    for (int64_t i = 0; i < n; i += block) {
        rotate(x + i, y + i, block, scale);
    }
}

void oe_hadamard_op(struct ggml_tensor *dst, int ith, int nth, void *block) {
    const int64_t length = (int64_t)(intptr_t)block, all = ggml_nelements(dst) / length;
    int64_t share = (all + nth - 1) / nth;
    share = share < SHARE / length ? SHARE / length : share;
    const int64_t begin = share * ith < all ? share * ith : all, left = all - begin;
    oe_hadamard((const float *)dst->src[0]->data + begin * length, (float *)dst->data + begin * length,
                (left < share ? left : share) * length, (int)length);
}
