/* Functions of single numbers as ggml custom operations: callbacks for ggml_custom_4d, dst f32 from src[0] f32 of the
 * same shape, both contiguous, shared among all threads. ggml calls the C library for one number at a time, and has one
 * thread compute: GELU took a fifth of a small BERT's time, and the cap of 262,144 logits 3 ms. */
#ifndef OE_POINTWISE_H
#define OE_POINTWISE_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

/* The exact form of GELU (Hendrycks and Gimpel 2016), x * Phi(x). Off by less than 2e-7 * max(1, |x|); NaN stays NaN.
 * x and y may be the same array, here and below. */
void oe_gelu(const float *x, float *y, int64_t n);
void oe_gelu_op(struct ggml_tensor *dst, int ith, int nth, void *unused);

/* Its tanh form, x * sigmoid(sqrt(8 / pi) * (x + 0.044715 x^3)). Off by less than 1e-6 * max(1, |x|); NaN stays NaN. */
void oe_gelu_tanh(const float *x, float *y, int64_t n);
void oe_gelu_tanh_op(struct ggml_tensor *dst, int ith, int nth, void *unused);

/* cap * tanh(x / cap) (Gemma Team 2024), for a cap above 0. In double, where it is off by 4e-13 of its size, and then
 * rounded: more than half a unit in the last place is possible once in a hundred thousand numbers, and only just. NaN
 * stays NaN. */
void oe_soft_cap(const float *x, float *y, int64_t n, float cap);
/* `cap_bits`: the bits of the float, as a pointer. */
void oe_soft_cap_op(struct ggml_tensor *dst, int ith, int nth, void *cap_bits);

#ifdef __cplusplus
}
#endif

#endif
