/* Compiled once for each type of keys and values (OE_ATTENTION_TYPE) and each instruction set; OE_ATTENTION_KERNEL is
 * the kernel's name. OE_ATTEND_BLOCKS: the function for many queries, of sets that have one. */
#include "kernels/attention_few.h"
#if defined(OE_ATTEND_BLOCKS)
#include "kernels/attention_many.h"
#endif

/* -- a piece ------------------------------------------------------------------------------------------------------- */

static void oe_attend(const oe_attention_piece *p) {
    const int64_t stride = oe_attention_partial(p->values.dim);
    int64_t n = 0;
    for (int64_t i = 0; i < p->n_queries; i++) {
        float *partial = p->queries[i].partial;
        memset(partial, 0, (size_t)stride * sizeof *partial);
        lanes_store(partial + MAX_AT, lanes_set(-INFINITY));
        n = p->queries[i].end > n ? p->queries[i].end : n;
    }
    const rounded r = rounded_in(p);
    if (is_rounded(OE_ATTENTION_TYPE)) {
        round_queries(p, &r);
    }
#if defined(OE_ATTEND_BLOCKS)
    if (p->n_queries > HEADS && many_fits(p)) {
        attend_many(OE_ATTENTION_TYPE, p, &r, n);
        return;
    }
#endif
    for (int64_t first = 0; first < n; first += TILE) {
        int64_t low, high, next = first + 2 * TILE < n ? first + 2 * TILE : n;
        if (!look_at(p, first, &low, &high)) {
            continue;
        }
        if (is_rounded(OE_ATTENTION_TYPE)) {
            round_keys(OE_ATTENTION_TYPE, p, p->list + (p->base + first), low, high, &r);
        }
        for (int64_t i = 0; i < p->n_queries; i += HEADS, next = 0) {
            const int some = (int)(p->n_queries - i < HEADS ? p->n_queries - i : HEADS);
            attend_some(OE_ATTENTION_TYPE, p, p->queries + i, some, first, next, &r);
        }
    }
}

/* -- the pieces of a row ------------------------------------------------------------------------------------------- */

static void oe_add(float *before, const float *partial, int64_t dim) {
    const lanes old = lanes_load(before + MAX_AT), new = lanes_load(partial + MAX_AT), most = lanes_max(old, new);
    const lanes keep = lanes_exp2(lanes_sub(old, most)), take = lanes_exp2(lanes_sub(new, most));
    lanes_store(before + MAX_AT, most);
    for (int64_t i = SUM_AT; i < oe_attention_partial(dim); i += OE_LANES) {
        const lanes kept = lanes_mul(lanes_load(before + i), keep);
        lanes_store(before + i, lanes_fma(lanes_load(partial + i), take, kept));
    }
}

static void oe_finish(const float *partial, const float *sink, int64_t dim, float *out) {
    const float max = partial[MAX_AT], last = sink ? *sink * OE_LOG2E : max, most = last > max ? last : max;
    const lanes factor = lanes_exp2(lanes_set(max - most));
    float weight[OE_LANES] = {0};
    if (sink) {
        lanes_store(weight, lanes_exp2(lanes_set(last - most)));
    }
    const lanes total = lanes_set(lanes_sum(lanes_mul(lanes_load(partial + SUM_AT), factor)) + weight[0]);
    for (int64_t from = 0; from < dim; from += OE_LANES) {
        float result[OE_LANES];
        lanes_store(result, lanes_div(lanes_mul(lanes_load(partial + VALUES_AT + from), factor), total));
        memcpy(out + from, result, (size_t)(dim - from < OE_LANES ? dim - from : OE_LANES) * sizeof *out);
    }
}

const oe_attention_kernel OE_ATTENTION_KERNEL = {oe_attend, oe_add, oe_finish};
