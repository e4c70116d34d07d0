#include "kernels/recurrent/causal_conv_op.h"

#include "kernels/recurrent/segments.h"

enum { SILU = 1, GATED = 2 };

/* Channels [from, from + c->count) of all segments. */
static void run(struct ggml_tensor *dst, const oe_recurrent_kernel *kernel, oe_convolution *c, int64_t from) {
    const struct ggml_tensor *x = dst->src[0], *weight = dst->src[1], *bounds = dst->src[3], *bias = dst->src[5];
    float weights[OE_CONV_TAPS * OE_CONV_CHANNELS];
    kernel->transpose((const float *)weight->data + from * c->taps, c->count, c->taps, weights);
    const char *at = (const char *)x->data + (size_t)from * sizeof(float);
    const size_t part = (size_t)c->channels * sizeof(float);
    if (c->gated) {
        c->before = (oe_operand){at, x->nb[1]};
        c->after = (oe_operand){at + part, x->nb[1]};
        c->x = (oe_operand){at + 2 * part, x->nb[1]};
    } else {
        c->x = (oe_operand){at, x->nb[1]};
    }
    c->weights = weights;
    c->bias = bias == NULL ? NULL : (const float *)bias->data + from;
    c->to = (float *)dst->data + from;
    for (int64_t m = 0; m < bounds->ne[1]; m++) {
        const oe_segment s = oe_segment_at(dst->src[2], bounds, dst->src[4], dst->src[6], m);
        if (s.n > 0) {
            c->read = s.read == NULL ? NULL : s.read + from;
            c->write = s.write == NULL ? NULL : s.write + from;
            kernel->convolve(c, &s);
        }
    }
}

static void run_share(struct ggml_tensor *dst, int ith, int nth, const oe_recurrent_kernel *kernel, int form) {
    const int64_t channels = dst->ne[0], blocks = (channels + 15) / 16, end = blocks * (ith + 1) / nth * 16;
    for (int64_t from = blocks * ith / nth * 16; from < end; from += OE_CONV_CHANNELS) {
        const int64_t here = end - from < OE_CONV_CHANNELS ? end - from : OE_CONV_CHANNELS, left = channels - from;
        oe_convolution c = {.gated = form == GATED,
                            .silu = form == SILU,
                            .channels = channels,
                            .count = here < left ? here : left,
                            .taps = dst->src[1]->ne[0]};
        run(dst, kernel, &c, from);
    }
}

void oe_causal_conv_op(struct ggml_tensor *dst, int ith, int nth, void *kernel) {
    run_share(dst, ith, nth, kernel, 0);
}

void oe_causal_conv_silu_op(struct ggml_tensor *dst, int ith, int nth, void *kernel) {
    run_share(dst, ith, nth, kernel, SILU);
}

void oe_causal_conv_gated_op(struct ggml_tensor *dst, int ith, int nth, void *kernel) {
    run_share(dst, ith, nth, kernel, GATED);
}
