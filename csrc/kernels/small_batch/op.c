#include "kernels/small_batch/op.h"

#include "ggml.h"
#include "kernels/small_batch/packed.h"
#include "kernels/small_batch/quads.h"
#include "threads/chunk_counter.h"

static int64_t until_packed(const oe_sb_kernel *kernel, int64_t k, int64_t rows) {
    const int64_t end = oe_acts_bytes(kernel, k, rows) + 2 * OE_CACHE_LINE;
    return (end + OE_CACHE_LINE - 1) / OE_CACHE_LINE * OE_CACHE_LINE;
}

/* Panels of 32 rows of packed activations. */
static int64_t panels_of(const oe_sb_kernel *kernel, int64_t k) { return oe_chunks(k / kernel->block); }

/* Extra room to align to a cache line. */
int64_t oe_sb_acts_size(const oe_sb_kernel *kernel, int64_t k, int64_t rows) {
    const int64_t panels = kernel->packs ? (rows + 31) / 32 * panels_of(kernel, k) : 0;
    return until_packed(kernel, k, rows) + panels * (int64_t)sizeof(oe_act_panel) + 2 * OE_CACHE_LINE;
}

/* ggml aligns to 32 bytes; a vector of 64 should not cross a cache line. */
static char *acts_of(const struct ggml_tensor *acts) {
    return (char *)(((uintptr_t)acts->data + OE_CACHE_LINE - 1) / OE_CACHE_LINE * OE_CACHE_LINE);
}

/* The panels of the 32 rows that `row` is one of. */
static oe_act_panel *packed_in(const oe_sb_kernel *by, const struct ggml_tensor *acts, int64_t k, int64_t rows,
                               int64_t row) {
    return (oe_act_panel *)(void *)(acts_of(acts) + until_packed(by, k, rows)) + row / 32 * panels_of(by, k);
}

/* The chunk counter, in groups of weight rows. */
static oe_chunk_counter *taken_groups(const oe_sb_kernel *by, const struct ggml_tensor *acts, int64_t k, int64_t rows) {
    return oe_chunk_counter_behind(acts_of(acts), oe_acts_bytes(by, k, rows));
}

/* -- activations --------------------------------------------------------------------------------------------------- */

#define MOST_NUMBERS (OE_QUAD * 256) /* in the blocks of a quad */

typedef struct source source;

/* Where activations come from: row by row, a quad's numbers at a time. */
struct source {
    const float *(*read)(source *from, int64_t row, int64_t first, int64_t n);
    const oe_sb_fused *fused;
    const struct ggml_tensor *a, *b;
    int64_t row;  /* whose `factor` that is, or -1 */
    float factor, eps;
    _Alignas(OE_CACHE_LINE) float numbers[MOST_NUMBERS];
};

static const float *row_of(const struct ggml_tensor *t, int64_t row) {
    return (const float *)(const void *)((const char *)t->data + (size_t)row * t->nb[1]);
}

static const float *read_plain(source *from, int64_t row, int64_t first, int64_t n) {
    (void)n;
    return row_of(from->a, row) + first;
}

static const float *read_swiglu(source *from, int64_t row, int64_t first, int64_t n) {
    from->fused->swiglu(row_of(from->a, row) + first, row_of(from->b, row) + first, n, from->numbers);
    return from->numbers;
}

static const float *read_norm(source *from, int64_t row, int64_t first, int64_t n) {
    const float *x = row_of(from->a, row);
    if (row != from->row) {
        from->row = row;
        from->factor = from->fused->norm_factor(x, from->a->ne[0], from->eps);
    }
    from->fused->scale(x + first, from->factor, (const float *)from->b->data + first, n, from->numbers);
    return from->numbers;
}

static void quantize(struct ggml_tensor *dst, int ith, int nth, const oe_sb_rounding *by, source *from) {
    const oe_sb_kernel *kernel = by->kernel;
    const int64_t k = from->a->ne[0], rows = from->a->ne[1], quads = oe_quads_of(kernel, k), all = quads * rows;
    if (ith == 0) {
        atomic_init(taken_groups(kernel, dst, k, rows), 0);
        if (kernel->packs && rows % 32) {
            oe_pack_zeros(k / kernel->block, rows % 32, packed_in(kernel, dst, k, rows, rows));
        }
    }
    for (int64_t i = all * ith / nth; i < all * (ith + 1) / nth; i++) {
        const int64_t row = i / quads, number = i % quads, first = number * OE_QUAD * kernel->block;
        const int64_t most = OE_QUAD * kernel->block, n = k - first < most ? k - first : most;
        oe_quad quad;
        oe_quad_quantize(kernel, from->read(from, row, first, n), n / kernel->block, &quad);
        oe_quad_put(kernel, &quad, by->interleaved, quads, rows, number, row, acts_of(dst));
        if (kernel->packs) {
            oe_pack_quad(quad.of_32, k / kernel->block, number, row % 32, packed_in(kernel, dst, k, rows, row));
        }
    }
}

void oe_sb_quantize_op(struct ggml_tensor *dst, int ith, int nth, void *rounding) {
    source from = {.read = read_plain, .a = dst->src[0]};
    quantize(dst, ith, nth, rounding, &from);
}

void oe_sb_quantize_swiglu_op(struct ggml_tensor *dst, int ith, int nth, void *rounding) {
    const oe_sb_rounding *by = rounding;
    source from = {.read = read_swiglu, .fused = by->kernel->fused, .a = dst->src[0], .b = dst->src[1]};
    quantize(dst, ith, nth, by, &from);
}

float oe_sb_norm_eps(const struct ggml_tensor *norm) {
    float eps;
    memcpy(&eps, norm->op_params, sizeof eps);
    return eps;
}

void oe_sb_quantize_norm_op(struct ggml_tensor *dst, int ith, int nth, void *rounding) {
    const oe_sb_rounding *by = rounding;
    source from = {.read = read_norm, .fused = by->kernel->fused, .a = dst->src[0], .b = dst->src[1]};
    from.row = -1;
    from.eps = by->eps;
    quantize(dst, ith, nth, by, &from);
}

/* -- products ------------------------------------------------------------------------------------------------------ */

/* One of the products of an operation. */
typedef struct part {
    oe_sb_product product;
    void (*multiply)(const oe_sb_product *p, int64_t first, int64_t last);
    int64_t groups, most; /* of weight rows; and how many of them a thread takes at most */
} part;

static part part_of(const oe_sb_multiplying *by, const struct ggml_tensor *weights, const struct ggml_tensor *acts,
                    int64_t rows, float *out) {
    const oe_sb_kernel *kernel = by->kernel;
    const int64_t k = weights->ne[0], m = weights->ne[1];
    return (part){
        .product = {.weights = weights->data,
                    .row_bytes = weights->nb[1],
                    .acts = acts_of(acts),
                    .packed = kernel->packs ? packed_in(kernel, acts, k, rows, 0) : NULL,
                    .blocks = k / kernel->block,
                    .m = m,
                    .rows = rows,
                    .variant = by->variant,
                    .out = out},
        .multiply = oe_sb_interleaves(kernel, by->variant, k, rows) ? kernel->multiply_interleaved : kernel->multiply,
        .groups = (m + OE_SB_GROUP - 1) / OE_SB_GROUP,
        .most = oe_sb_most_groups(kernel, k, rows),
    };
}

/* Groups first .. last - 1 of all products, one after the other. */
static void multiply_groups(const part *parts, int64_t first, int64_t last) {
    for (; last > 0; parts++) {
        const int64_t from = (first > 0 ? first : 0) * OE_SB_GROUP;
        const int64_t to = (last < parts->groups ? last : parts->groups) * OE_SB_GROUP;
        if (from < to) {
            oe_sb_product product = parts->product;
            product.next = last > parts->groups ? parts[1].product.weights : NULL;
            parts->multiply(&product, from, to < product.m ? to : product.m);
        }
        first -= parts->groups;
        last -= parts->groups;
    }
}

void oe_sb_multiply_op(struct ggml_tensor *dst, int ith, int nth, void *userdata) {
    const oe_sb_together *by = userdata;
    const struct ggml_tensor *acts = dst->src[0];
    const int64_t rows = by->rows, k = dst->src[1]->ne[0];
    part parts[OE_SB_TOGETHER];
    int64_t groups = 0, most = INT64_MAX;
    float *out = dst->data;
    (void)ith;
    for (int i = 0; i < by->count; i++) {
        parts[i] = part_of(&by->products[i], dst->src[1 + i], acts, rows, out);
        out += parts[i].product.m * rows;
        groups += parts[i].groups;
        most = parts[i].most < most ? parts[i].most : most;
    }
    oe_chunk_counter *taken = taken_groups(by->products[0].kernel, acts, k, rows);
    int64_t first, last;
    while (oe_take_chunk_of(taken, groups, nth, most, oe_sb_groups_at_once(rows), &first, &last)) {
        multiply_groups(parts, first, last);
    }
    oe_leave_chunks(taken, groups, nth);
}
