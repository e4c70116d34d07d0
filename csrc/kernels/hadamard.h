/* The Walsh-Hadamard transform as a ggml custom operation: callback for ggml_custom_4d, dst f32 from src[0] f32 of the
 * same shape, both contiguous, shared among all threads. */
#ifndef OE_HADAMARD_H
#define OE_HADAMARD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

#define OE_HADAMARD_MIN 16
#define OE_HADAMARD_MAX 1024

/* Each run of `block` numbers times the Hadamard matrix of that order (Sylvester's) over the square root of `block`: a
 * rotation that is its own inverse. `block`: a power of two from OE_HADAMARD_MIN to OE_HADAMARD_MAX, which divides n.
 * The same bits on every CPU. x and y may be the same array. */
void oe_hadamard(const float *x, float *y, int64_t n, int block);
/* `block`: the number, as a pointer. */
void oe_hadamard_op(struct ggml_tensor *dst, int ith, int nth, void *block);

#ifdef __cplusplus
}
#endif

#endif
