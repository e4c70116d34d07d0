/* Compiled once for each instruction set; OE_ATTENTION_KERNELS is the name of its table. */
#include "kernels/attention_few.h"
#if defined(__AVX2__) /* plain C is the twin that the others are compared with */
#include "kernels/attention_many.h"
#endif

/* -- a piece ------------------------------------------------------------------------------------------------------- */

INLINE void attend(const int type, const oe_attention_piece *p) {
    const int64_t stride = oe_attention_partial(p->values.dim);
    int64_t n = 0;
    for (int64_t i = 0; i < p->n_queries; i++) {
        float *partial = p->queries[i].partial;
        memset(partial, 0, (size_t)stride * sizeof *partial);
        lanes_store(partial + MAX_AT, lanes_set(-INFINITY));
        n = p->queries[i].end > n ? p->queries[i].end : n;
    }
#if defined(__AVX2__)
    if (p->n_queries > HEADS && many_fits(p)) {
        attend_many(type, p, n);
        return;
    }
#endif
    for (int64_t first = 0; first < n; first += TILE) {
        int64_t next = first + 2 * TILE < n ? first + 2 * TILE : n;
        for (int64_t i = 0; i < p->n_queries; i += HEADS, next = 0) {
            const int some = (int)(p->n_queries - i < HEADS ? p->n_queries - i : HEADS);
            attend_some(type, p, p->queries + i, some, first, next);
        }
    }
}

static void attend_f32(const oe_attention_piece *piece) { attend(OE_ATTENTION_F32, piece); }

static void attend_f16(const oe_attention_piece *piece) { attend(OE_ATTENTION_F16, piece); }

static void attend_bf16(const oe_attention_piece *piece) { attend(OE_ATTENTION_BF16, piece); }

static void attend_q8_0(const oe_attention_piece *piece) { attend(OE_ATTENTION_Q8_0, piece); }

static void attend_q4_0(const oe_attention_piece *piece) { attend(OE_ATTENTION_Q4_0, piece); }

/* -- the pieces of a row ------------------------------------------------------------------------------------------- */

static void add(float *before, const float *partial, int64_t dim) {
    const lanes old = lanes_load(before + MAX_AT), new = lanes_load(partial + MAX_AT), most = lanes_max(old, new);
    const lanes keep = lanes_exp(lanes_sub(old, most)), take = lanes_exp(lanes_sub(new, most));
    lanes_store(before + MAX_AT, most);
    for (int64_t i = SUM_AT; i < oe_attention_partial(dim); i += OE_LANES) {
        const lanes kept = lanes_mul(lanes_load(before + i), keep);
        lanes_store(before + i, lanes_fma(lanes_load(partial + i), take, kept));
    }
}

static void finish(const float *partial, const float *sink, int64_t dim, float *out) {
    const float max = partial[MAX_AT], most = sink && *sink > max ? *sink : max;
    const lanes factor = lanes_exp(lanes_set(max - most));
    float weight[OE_LANES] = {0};
    if (sink) {
        lanes_store(weight, lanes_exp(lanes_set(*sink - most)));
    }
    const lanes total = lanes_set(lanes_sum(lanes_mul(lanes_load(partial + SUM_AT), factor)) + weight[0]);
    for (int64_t from = 0; from < dim; from += OE_LANES) {
        float last[OE_LANES];
        lanes_store(last, lanes_div(lanes_mul(lanes_load(partial + VALUES_AT + from), factor), total));
        memcpy(out + from, last, (size_t)(dim - from < OE_LANES ? dim - from : OE_LANES) * sizeof *out);
    }
}

const oe_attention_kernel OE_ATTENTION_KERNELS[OE_ATTENTION_TYPES] = {
    [OE_ATTENTION_F32] = {attend_f32, add, finish},   [OE_ATTENTION_F16] = {attend_f16, add, finish},
    [OE_ATTENTION_BF16] = {attend_bf16, add, finish}, [OE_ATTENTION_Q8_0] = {attend_q8_0, add, finish},
    [OE_ATTENTION_Q4_0] = {attend_q4_0, add, finish},
};
