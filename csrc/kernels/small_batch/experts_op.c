#include "kernels/small_batch/experts_op.h"

#include <stdbool.h>

#include "ggml.h"
#include "kernels/small_batch/op.h"
#include "kernels/small_batch/quads.h"
#include "threads/chunk_counter.h"

/* -- the plan: which routes go to which expert --------------------------------------------------------------------- */

typedef struct run { /* places first .. first + routes - 1 of the sorted routes go to one expert */
    int32_t expert, first, routes;
} run;

typedef struct plan { /* pointers to its parts within a tensor */
    int32_t *n_runs;
    run *runs;
    int32_t *run_of;  /* by route */
    int32_t *place;   /* by route: its place in `sorted` */
    int32_t *sorted;  /* by place: the route */
    int32_t *counted; /* by expert: its routes, while the plan is made */
} plan;

int64_t oe_experts_plan_size(int64_t routes, int64_t experts) { return 1 + 6 * routes + experts; }

static plan plan_in(const struct ggml_tensor *t, int64_t routes) {
    int32_t *numbers = t->data;
    return (plan){
        .n_runs = numbers,
        .runs = (run *)(numbers + 1),
        .run_of = numbers + 1 + 3 * routes,
        .place = numbers + 1 + 4 * routes,
        .sorted = numbers + 1 + 5 * routes,
        .counted = numbers + 1 + 6 * routes,
    };
}

/* Ids are checked before a graph is computed. An id changed after that gives a wrong expert, never a wild read. */
static int32_t expert_of(const struct ggml_tensor *ids, int64_t route, int64_t experts) {
    const int64_t slot = route % ids->ne[0], token = route / ids->ne[0];
    const int32_t id = *(const int32_t *)((const char *)ids->data + slot * (int64_t)sizeof id +
                                          (size_t)token * ids->nb[1]);
    return id < 0 ? 0 : id < experts ? id : (int32_t)experts - 1;
}

/* Makes a run of each expert with routes, and replaces each count by the number of its run. */
static void make_runs(plan p, int64_t experts) {
    int32_t first = 0;
    *p.n_runs = 0;
    for (int64_t e = 0; e < experts; e++) {
        if (p.counted[e]) {
            p.runs[*p.n_runs] = (run){(int32_t)e, first, 0};
            first += p.counted[e];
            p.counted[e] = (*p.n_runs)++;
        }
    }
}

void oe_experts_plan_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const struct ggml_tensor *ids = dst->src[0];
    const int64_t routes = ids->ne[0] * ids->ne[1], experts = (int64_t)(intptr_t)userdata;
    const plan p = plan_in(dst, routes);
    (void)nth;
    if (ith != 0) {
        return;
    }
    memset(p.counted, 0, (size_t)experts * sizeof *p.counted);
    for (int64_t r = 0; r < routes; r++) {
        p.run_of[r] = expert_of(ids, r, experts);
        p.counted[p.run_of[r]]++;
    }
    make_runs(p, experts);
    for (int64_t r = 0; r < routes; r++) {
        p.run_of[r] = p.counted[p.run_of[r]];
        run *mine = &p.runs[p.run_of[r]];
        p.place[r] = mine->first + mine->routes++;
        p.sorted[p.place[r]] = (int32_t)r;
    }
}

/* -- activations: those of a run are contiguous, as the rows of one product ---------------------------------------- */

int64_t oe_experts_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t routes) {
    return oe_acts_bytes(kernel, k, routes) + 2 * OE_CACHE_LINE;
}

static oe_chunk_counter *taken_groups(const oe_sb_kernel *by, const struct ggml_tensor *acts, int64_t k,
                                      int64_t routes) {
    return oe_chunk_counter_behind(acts->data, oe_acts_bytes(by, k, routes));
}

static size_t acts_of(const oe_sb_kernel *kernel, int64_t k, run of) {
    return (size_t)(of.first * oe_quads_of(kernel, k)) * oe_quad_bytes(kernel);
}

/* Whether a run uses multiply_interleaved of the kernel for few rows. */
static bool is_interleaved(const oe_sb_multiplying *by, int64_t k, run of) {
    return oe_sb_interleaves(oe_sb_kernel_for(by->kernel, 1), by->variant, k, of.routes);
}

void oe_experts_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_sb_multiplying *by = userdata;
    const oe_sb_kernel *kernel = by->kernel;
    const struct ggml_tensor *x = dst->src[0], *ids = dst->src[1];
    const int64_t k = x->ne[0], used = ids->ne[0], quads = oe_quads_of(kernel, k), all = quads * x->ne[1] * x->ne[2];
    const plan p = plan_in(dst->src[2], used * ids->ne[1]);
    if (ith == 0) {
        atomic_init(taken_groups(kernel, dst, k, used * ids->ne[1]), 0);
    }
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const int64_t quad = i % quads, row = i / quads % x->ne[1], token = i / quads / x->ne[1];
        const char *values = (const char *)x->data + (size_t)row * x->nb[1] + (size_t)token * x->nb[2];
        const int64_t block = quad * OE_QUAD;
        oe_quad rounded;
        oe_quad_quantize(kernel, (const float *)values + block * kernel->block, k / kernel->block - block, &rounded);
        for (int64_t route = token * used + row; route < (token + 1) * used; route += x->ne[1]) {
            const run mine = p.runs[p.run_of[route]];
            const int64_t at = quad * mine.routes + p.place[route] - mine.first;
            char *to = (char *)dst->data + acts_of(kernel, k, mine) + (size_t)at * oe_quad_bytes(kernel);
            oe_quad_store(kernel, &rounded, is_interleaved(by, k, mine), to);
        }
    }
}

/* -- products ------------------------------------------------------------------------------------------------------ */

static const uint8_t *weights_of(const struct ggml_tensor *weights, run of) {
    return (const uint8_t *)weights->data + (size_t)of.expert * weights->nb[2];
}

/* The product of one run; `out` has a row for each route. `next`: the run whose product follows, or NULL. */
static oe_sb_product product_of(const oe_sb_multiplying *by, const struct ggml_tensor *dst, plan p, run of,
                                const run *next) {
    const oe_sb_kernel *kernel = by->kernel;
    const struct ggml_tensor *weights = dst->src[0], *acts = dst->src[1];
    return (oe_sb_product){
        .weights = weights_of(weights, of),
        .next = next ? weights_of(weights, *next) : NULL,
        .row_bytes = weights->nb[1],
        .acts = (const char *)acts->data + acts_of(kernel, weights->ne[0], of),
        .blocks = weights->ne[0] / kernel->block,
        .m = dst->ne[0],
        .rows = of.routes,
        .variant = by->variant,
        .out = dst->data,
        .places = p.sorted + of.first,
    };
}

void oe_experts_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_sb_multiplying *multiplying = userdata;
    const oe_sb_kernel *kernel = multiplying->kernel;
    const int64_t k = dst->src[0]->ne[0], m = dst->ne[0], routes = dst->ne[1] * dst->ne[2];
    const plan p = plan_in(dst->src[2], routes);
    const int64_t groups = (m + OE_SB_GROUP - 1) / OE_SB_GROUP, parts = *p.n_runs * groups;
    oe_chunk_counter *taken = taken_groups(kernel, dst->src[1], k, routes);
    const int64_t each = routes / *p.n_runs; /* on average */
    const int64_t unit = oe_sb_groups_at_once(each), most = oe_sb_most_groups(kernel, k, each);
    int64_t first, last;
    (void)ith;
    while (oe_take_chunk_of(taken, parts, nth, most, unit, &first, &last)) {
        for (int64_t end; first < last; first = end) { /* parts that each lie in one run */
            const int64_t begin = first / groups * groups;
            end = last < begin + groups ? last : begin + groups;
            const run mine = p.runs[first / groups];
            const run *next = end < last ? &p.runs[first / groups + 1] : NULL;
            const oe_sb_product product = product_of(multiplying, dst, p, mine, next);
            const int64_t stop = (end - begin) * OE_SB_GROUP;
            const oe_sb_kernel *by = oe_sb_kernel_for(kernel, mine.routes);
            (is_interleaved(multiplying, k, mine) ? by->multiply_interleaved : by->multiply)(
                &product, (first - begin) * OE_SB_GROUP, stop < m ? stop : m);
        }
    }
    oe_leave_chunks(taken, parts, nth);
}
