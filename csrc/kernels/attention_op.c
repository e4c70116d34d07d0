#include "kernels/attention_op.h"

#include <stdatomic.h>
#include <string.h>

#include "ggml.h"
#include "threads/chunk_counter.h"

/* Rows are split into pieces. A unit of work is one piece of one row for one key head. */
typedef struct plan {
    oe_chunk_counter *taken; /* units of work taken */
    int32_t *first_piece;    /* [rows + 1] numbered across all rows */
    int32_t *begin;          /* [rows] index in the list */
    int32_t *length;         /* [rows] */
    _Atomic int32_t *done;   /* [rows][kv_heads] finished pieces; 0 between operations */
} plan;

int64_t oe_attention_plan_size(int64_t rows, int64_t kv_heads) {
    return 2 * OE_CACHE_LINE + (int64_t)sizeof(int32_t) * (3 * rows + 1 + rows * kv_heads);
}

static plan plan_in(const struct ggml_tensor *t, int64_t rows) {
    char *line = (char *)(((uintptr_t)t->data + OE_CACHE_LINE - 1) / OE_CACHE_LINE * OE_CACHE_LINE);
    int32_t *numbers = (int32_t *)(void *)(line + OE_CACHE_LINE);
    return (plan){
        .taken = (oe_chunk_counter *)(void *)line,
        .first_piece = numbers,
        .begin = numbers + rows + 1,
        .length = numbers + 2 * rows + 1,
        .done = (_Atomic int32_t *)(numbers + 3 * rows + 1),
    };
}

void oe_attention_plan_op(struct ggml_tensor *dst, int ith, int nth, void *unused) {
    const struct ggml_tensor *parts = dst->src[0], *list = dst->src[1];
    const int64_t rows = parts->ne[1];
    const plan to = plan_in(dst, rows);
    const int32_t *part = parts->data;
    (void)nth;
    (void)unused;
    if (ith != 0) {
        return;
    }
    memset(dst->data, 0, (size_t)dst->ne[0]);
    for (int64_t row = 0; row < rows; row++, part += 2) {
        const bool there = 0 <= part[0] && part[0] < part[1] && part[1] <= list->ne[0];
        to.begin[row] = there ? part[0] : 0;
        to.length[row] = there ? part[1] - part[0] : 0;
        to.first_piece[row + 1] = to.first_piece[row] + (int32_t)oe_attention_pieces(to.length[row]);
    }
}

/* -- one operation ------------------------------------------------------------------------------------------------- */

static int64_t result_size(int64_t rows, int64_t heads, int64_t value_dim) {
    const int64_t line = OE_CACHE_LINE / (int64_t)sizeof(float);
    return (rows * heads * value_dim + line - 1) / line * line;
}

int64_t oe_attention_size(int64_t rows, int64_t heads, int64_t value_dim, int64_t n) {
    const int64_t pieces = rows * oe_attention_pieces(n);
    return result_size(rows, heads, value_dim) + pieces * heads * oe_attention_partial(value_dim);
}

typedef struct operation {
    const struct ggml_tensor *query, *keys, *values, *list, *sinks;
    const oe_attention_params *params;
    plan plan;
    int64_t rows, heads, kv_heads, group, value_dim;
    int64_t stride;  /* floats in a partial result of one query head */
    float *partials; /* [pieces][heads][stride] */
    float *out;      /* [rows][heads][value_dim] */
} operation;

static operation operation_of(const struct ggml_tensor *dst, const oe_attention_params *params) {
    operation op = {
        .query = dst->src[0],
        .keys = dst->src[1],
        .values = dst->src[2],
        .list = dst->src[4],
        .sinks = dst->src[5],
        .params = params,
        .out = dst->data,
    };
    op.rows = op.query->ne[1];
    op.heads = op.query->ne[2];
    op.kv_heads = op.keys->ne[2];
    op.group = op.heads / op.kv_heads;
    op.value_dim = op.values->ne[0];
    op.stride = oe_attention_partial(op.value_dim);
    op.partials = op.out + result_size(op.rows, op.heads, op.value_dim);
    op.plan = plan_in(dst->src[3], op.rows);
    return op;
}

static oe_attention_side side_of(const struct ggml_tensor *t, int64_t kv_head) {
    return (oe_attention_side){(const char *)t->data + (size_t)kv_head * t->nb[2], t->nb[1], t->nb[2], t->ne[0]};
}

static float *partial_of(const operation *op, int64_t piece, int64_t head) {
    return op->partials + (piece * op->heads + head) * op->stride;
}

static void attend(const operation *op, int64_t row, int64_t number, int64_t kv_head) {
    const struct ggml_tensor *q = op->query;
    const int64_t length = op->plan.length[row], head = kv_head * op->group;
    const int64_t begin = oe_attention_piece_begin(length, number);
    const oe_attention_piece piece = {
        .query = (const char *)q->data + (size_t)row * q->nb[1] + (size_t)head * q->nb[2],
        .query_head = q->nb[2],
        .group = op->group,
        .keys = side_of(op->keys, kv_head),
        .values = side_of(op->values, kv_head),
        .scale = op->params->scale,
        .cap = op->params->cap,
        .cells = (const int32_t *)op->list->data + op->plan.begin[row] + begin,
        .n = oe_attention_piece_begin(length, number + 1) - begin,
        .partial = partial_of(op, op->plan.first_piece[row] + number, head),
    };
    op->params->kernel->attend(&piece);
}

static void join(const operation *op, int64_t row, int64_t pieces, int64_t kv_head) {
    const float *sinks = op->sinks ? op->sinks->data : NULL;
    for (int64_t head = kv_head * op->group; head < (kv_head + 1) * op->group; head++) {
        float *out = op->out + (row * op->heads + head) * op->value_dim;
        if (op->plan.length[row] == 0) {
            memset(out, 0, (size_t)op->value_dim * sizeof *out);
            continue;
        }
        op->params->kernel->join(partial_of(op, op->plan.first_piece[row], head), op->heads * op->stride, pieces,
                                 sinks ? sinks + head : NULL, op->value_dim, out);
    }
}

/* Computes a piece. The thread that finishes a row's last piece joins all of them. */
static void do_piece(const operation *op, int64_t row, int64_t number, int64_t kv_head) {
    const int32_t pieces = op->plan.first_piece[row + 1] - op->plan.first_piece[row];
    _Atomic int32_t *done = op->plan.done + row * op->kv_heads + kv_head;
    if (op->plan.length[row]) {
        attend(op, row, number, kv_head);
    }
    if (atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) == pieces - 1) {
        atomic_store_explicit(done, 0, memory_order_relaxed);
        join(op, row, pieces, kv_head);
    }
}

/* The row of a piece, by binary search. */
static int64_t row_of(const plan *plan, int64_t rows, int64_t piece) {
    int64_t low = 0, high = rows - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (plan->first_piece[middle] <= piece) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

void oe_attention_op(struct ggml_tensor *dst, int ith, int nth, void *params) {
    const operation op = operation_of(dst, params);
    const int64_t n_pieces = op.plan.first_piece[op.rows] * op.kv_heads;
    int64_t first, last;
    (void)ith;
    while (oe_take_chunk(op.plan.taken, n_pieces, nth, &first, &last)) {
        int64_t row = row_of(&op.plan, op.rows, first / op.kv_heads);
        for (int64_t i = first; i < last; i++) {
            const int64_t piece = i / op.kv_heads;
            row += piece == op.plan.first_piece[row + 1];
            do_piece(&op, row, piece - op.plan.first_piece[row], i % op.kv_heads);
        }
    }
    oe_leave_chunks(op.plan.taken, n_pieces, nth);
}
