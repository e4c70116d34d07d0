#include "kernels/attention_op.h"

#include <stdatomic.h>
#include <string.h>

#include "ggml.h"
#include "threads/chunk_counter.h"

#define FEW_ROWS 64   /* up to here every piece of a row may be a unit of work of its own */
#define BAND 48       /* most rows that are computed together */
#define QUERIES OE_MOST_QUERIES /* they read a tile while it is in the L1 cache */
#define FEWEST_SHARED 16 /* rows that are computed by bands where they share their cells */
#define MOST_PARTIALS 32768 /* floats for the partial results of queries that are computed together */

/* Rows are split into pieces, and neighbours whose pieces begin alike, as those of a draft do, are a band. With few
 * rows a unit of work is one piece of the rows of a band for one key head, and the thread that finishes a row's last
 * piece adds them up. With many rows, and with some that share their cells, it is all pieces of a band, one after the
 * other. Both do the same arithmetic. */
typedef struct plan {
    oe_chunk_counter *taken; /* units of work taken */
    int32_t *first_piece;    /* [rows + 1] numbered across all rows */
    int32_t *base;           /* [rows] index in the list of the first tile, of which a row may see the end only */
    int32_t *phase;          /* [rows] first cell of that tile that the row sees */
    int32_t *end;            /* [rows] the cell behind its last one, counted from `base`; equal to `phase`: none */
    int32_t *n_bands;        /* [1] */
    int32_t *band;           /* [rows + 1] first row of each band: up to BAND rows whose pieces begin alike */
    int32_t *band_piece;     /* [rows + 1] first piece of each band, which has as many as its longest row */
    _Atomic int32_t *done;   /* [rows][kv_heads] finished pieces; 0 between operations */
} plan;

int64_t oe_attention_plan_size(int64_t rows, int64_t kv_heads) {
    return 2 * OE_CACHE_LINE + (int64_t)sizeof(int32_t) * (6 * rows + 4 + rows * kv_heads);
}

static plan plan_in(const struct ggml_tensor *t, int64_t rows) {
    char *line = (char *)(((uintptr_t)t->data + OE_CACHE_LINE - 1) / OE_CACHE_LINE * OE_CACHE_LINE);
    int32_t *numbers = (int32_t *)(void *)(line + OE_CACHE_LINE);
    return (plan){
        .taken = (oe_chunk_counter *)(void *)line,
        .first_piece = numbers,
        .base = numbers + rows + 1,
        .phase = numbers + 2 * rows + 1,
        .end = numbers + 3 * rows + 1,
        .n_bands = numbers + 4 * rows + 1,
        .band = numbers + 4 * rows + 2,
        .band_piece = numbers + 5 * rows + 3,
        .done = (_Atomic int32_t *)(numbers + 6 * rows + 4),
    };
}

static int32_t pieces_of(const plan *plan, int64_t row) { return plan->first_piece[row + 1] - plan->first_piece[row]; }

static void plan_bands(const plan *to, int64_t rows) {
    int64_t n = 0, first = 0;
    for (int64_t row = 0; row < rows; row++) {
        if (row == 0 || row - first == BAND || to->base[row] != to->base[first] ||
            oe_attention_piece_size(to->end[row]) != oe_attention_piece_size(to->end[first])) {
            to->band_piece[n + 1] = to->band_piece[n];
            to->band[n++] = (int32_t)(first = row);
        }
        const int32_t end = to->band_piece[n - 1] + pieces_of(to, row);
        to->band_piece[n] = end > to->band_piece[n] ? end : to->band_piece[n];
    }
    to->band[n] = (int32_t)rows;
    *to->n_bands = (int32_t)n;
}

void oe_attention_plan_op(struct ggml_tensor *dst, int ith, int nth, void *unused) {
    const struct ggml_tensor *parts = dst->src[0], *list = dst->src[1], *phases = dst->src[2];
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
        const int32_t phase = there && phases ? ((const int32_t *)phases->data)[row] & (OE_TILE - 1) : 0;
        to.base[row] = there ? part[0] - phase : 0;
        to.phase[row] = phase;
        to.end[row] = there ? part[1] - to.base[row] : 0;
        to.first_piece[row + 1] = to.first_piece[row] + (int32_t)oe_attention_pieces(to.end[row]);
    }
    plan_bands(&to, rows);
}

/* -- one operation ------------------------------------------------------------------------------------------------- */

static int64_t result_size(int64_t rows, int64_t heads, int64_t value_dim) {
    const int64_t line = OE_CACHE_LINE / (int64_t)sizeof(float);
    return (rows * heads * value_dim + line - 1) / line * line;
}

/* Queries that are computed together. */
static int64_t most_queries(int64_t value_dim) {
    const int64_t fitting = MOST_PARTIALS / oe_attention_partial(value_dim) / OE_QUERIES * OE_QUERIES;
    return fitting < QUERIES ? fitting : QUERIES;
}

static bool bands_fit(int64_t value_dim) { return most_queries(value_dim) > 0; }

/* Whether there is no place for the partial results of all pieces. */
static bool by_bands(int64_t rows, int64_t value_dim) { return rows > FEW_ROWS && bands_fit(value_dim); }

static int64_t partials_size(int64_t rows, int64_t heads, int64_t value_dim, int64_t n) {
    const int64_t pieces = by_bands(rows, value_dim) ? 0 : rows * oe_attention_most_pieces(n + OE_TILE);
    return pieces * heads * oe_attention_partial(value_dim);
}

/* Floats of one kind of partial results, of which a thread has two while it computes by bands. */
static int64_t sums_size(int64_t rows, int64_t value_dim) {
    return rows < FEWEST_SHARED ? 0 : most_queries(value_dim) * oe_attention_partial(value_dim);
}

static int64_t thread_size(int64_t rows, int64_t key_dim, int64_t value_dim) {
    return 2 * sums_size(rows, value_dim) + oe_attention_scratch(key_dim, value_dim);
}

int64_t oe_attention_size(const oe_attention_shape *of, int threads) {
    const int64_t line = OE_CACHE_LINE / (int64_t)sizeof(float); /* the scratch is aligned */
    return result_size(of->rows, of->heads, of->value_dim) + partials_size(of->rows, of->heads, of->value_dim, of->n) +
           threads * thread_size(of->rows, of->key_dim, of->value_dim) + line;
}

typedef struct operation {
    const struct ggml_tensor *query, *keys, *values, *list, *sinks;
    const oe_attention_params *params;
    plan plan;
    int64_t rows, heads, kv_heads, group, value_dim;
    int64_t stride;  /* floats in a partial result of one query head */
    float *partials; /* [pieces][heads][stride], of few rows */
    float *sums, *more_sums; /* this thread's [queries][stride], of many rows */
    float *scratch;          /* this thread's, for the kernel */
    float *out;      /* [rows][heads][value_dim] */
} operation;

static operation operation_of(const struct ggml_tensor *dst, int ith, const oe_attention_params *params) {
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
    const int64_t sums = sums_size(op.rows, op.value_dim), key_dim = op.keys->ne[0];
    float *all = op.partials + partials_size(op.rows, op.heads, op.value_dim, op.list->ne[0]);
    all = (float *)(void *)(((uintptr_t)all + OE_CACHE_LINE - 1) / OE_CACHE_LINE * OE_CACHE_LINE);
    op.sums = all + ith * thread_size(op.rows, key_dim, op.value_dim);
    op.more_sums = op.sums + sums;
    op.scratch = op.more_sums + sums;
    return op;
}

/* Few rows are computed by bands where most share their cells with others, and every thread gets some. */
static bool goes_by_bands(const operation *op, int nth) {
    const int64_t bands = *op->plan.n_bands;
    const bool shared = op->rows >= FEWEST_SHARED && op->rows >= 4 * bands && op->kv_heads * bands >= 2 * nth;
    return by_bands(op->rows, op->value_dim) || (shared && bands_fit(op->value_dim));
}

static oe_attention_side side_of(const struct ggml_tensor *t, int64_t kv_head) {
    return (oe_attention_side){(const char *)t->data + (size_t)kv_head * t->nb[2], t->nb[1], t->nb[2], t->ne[0]};
}

static const float *query_of(const operation *op, int64_t row, int64_t head) {
    const struct ggml_tensor *q = op->query;
    return (const float *)(const void *)((const char *)q->data + (size_t)row * q->nb[1] + (size_t)head * q->nb[2]);
}

/* A query, and what it sees of a piece. */
static oe_attention_query query_in(const operation *op, int64_t row, int64_t head, int64_t piece, float *partial) {
    const int64_t size = oe_attention_piece_size(op->plan.end[row]), left = op->plan.end[row] - piece * size;
    const int64_t first = piece ? 0 : op->plan.phase[row], end = left < size ? left : size;
    return (oe_attention_query){query_of(op, row, head), first, end, partial};
}

/* A piece of the list of `row`, and of the rows in its band. */
static void attend(const operation *op, int64_t row, int64_t number, int64_t kv_head,
                   const oe_attention_query *queries, int64_t n_queries) {
    const oe_attention_piece piece = {
        .queries = queries,
        .n_queries = n_queries,
        .keys = side_of(op->keys, kv_head),
        .values = side_of(op->values, kv_head),
        .scale = op->params->scale,
        .cap = op->params->cap,
        .list = op->list->data,
        .base = op->plan.base[row] + number * oe_attention_piece_size(op->plan.end[row]),
        .scratch = op->scratch,
    };
    op->params->kernel->attend(&piece);
}

static void finish(const operation *op, int64_t row, int64_t head, const float *partial) {
    const float *sinks = op->sinks ? op->sinks->data : NULL;
    float *out = op->out + (row * op->heads + head) * op->value_dim;
    if (op->plan.end[row] == 0) {
        memset(out, 0, (size_t)op->value_dim * sizeof *out);
    } else {
        op->params->kernel->finish(partial, sinks ? sinks + head : NULL, op->value_dim, out);
    }
}

/* -- few rows ------------------------------------------------------------------------------------------------------ */

static float *partial_of(const operation *op, int64_t row, int64_t number, int64_t head) {
    return op->partials + ((op->plan.first_piece[row] + number) * op->heads + head) * op->stride;
}

static void add_up(const operation *op, int64_t row, int64_t pieces, int64_t kv_head) {
    for (int64_t head = kv_head * op->group; head < (kv_head + 1) * op->group; head++) {
        float *sum = partial_of(op, row, 0, head);
        for (int64_t i = 1; i < pieces; i++) {
            op->params->kernel->add(sum, partial_of(op, row, i, head), op->value_dim);
        }
        finish(op, row, head, sum);
    }
}

/* Computes a piece of the rows [first, last) of a band. The thread that finishes a row's last piece adds all of them
 * up. */
static void do_piece(const operation *op, int64_t first, int64_t last, int64_t number, int64_t kv_head) {
    oe_attention_query queries[QUERIES];
    int64_t n = 0;
    for (int64_t row = first; row < last; row++) {
        for (int64_t i = 0; number < pieces_of(&op->plan, row) && i < op->group; i++) {
            const int64_t head = kv_head * op->group + i;
            queries[n++] = query_in(op, row, head, number, partial_of(op, row, number, head));
            if (n == QUERIES) {
                attend(op, first, number, kv_head, queries, n);
                n = 0;
            }
        }
    }
    if (n) {
        attend(op, first, number, kv_head, queries, n);
    }
    for (int64_t row = first; row < last; row++) {
        const int32_t pieces = pieces_of(&op->plan, row);
        _Atomic int32_t *done = op->plan.done + row * op->kv_heads + kv_head;
        if (number < pieces && atomic_fetch_add_explicit(done, 1, memory_order_acq_rel) == pieces - 1) {
            atomic_store_explicit(done, 0, memory_order_relaxed);
            add_up(op, row, pieces, kv_head);
        }
    }
}

/* The band of a piece, by binary search. */
static int64_t band_of(const plan *plan, int64_t piece) {
    int64_t low = 0, high = *plan->n_bands - 1;
    while (low < high) {
        const int64_t middle = (low + high + 1) / 2;
        if (plan->band_piece[middle] <= piece) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

/* Parts of a band that are units of their own, so that every thread gets some. */
static int64_t parts_of_bands(const operation *op, int nth) {
    const int64_t bands = *op->plan.n_bands, units = op->kv_heads * op->plan.band_piece[bands];
    const int64_t parts = (2 * nth + units - 1) / units, most = op->rows - bands + 1;
    return parts < most ? parts : most;
}

static void do_pieces(const operation *op, int64_t parts, int64_t first, int64_t last) {
    const plan *plan = &op->plan;
    for (int64_t i = first; i < last; i++) {
        /* The heads of a piece one after the other, because they share cache lines and pages. The last piece first,
         * because it may be short: it evens out worst at the end. */
        const int64_t kv_head = i % op->kv_heads, part = i / op->kv_heads % parts, at = i / op->kv_heads / parts;
        const int64_t band = band_of(plan, at), turn = at - plan->band_piece[band];
        const int64_t number = turn ? turn - 1 : plan->band_piece[band + 1] - plan->band_piece[band] - 1;
        const int64_t begin = plan->band[band], rows = plan->band[band + 1] - begin;
        do_piece(op, begin + rows * part / parts, begin + rows * (part + 1) / parts, number, kv_head);
    }
}

/* -- many rows ----------------------------------------------------------------------------------------------------- */

/* Up to QUERIES of a band's queries, which are numbered row by row: neighbours see the same cells. */
static void do_queries(const operation *op, int64_t band, int64_t kv_head, int64_t first, int64_t n) {
    float *sum = op->sums, *partial = op->more_sums;
    const int64_t begin = op->plan.band[band];
    int64_t row[QUERIES], head[QUERIES], pieces = 1;
    for (int64_t i = 0; i < n; i++) {
        row[i] = begin + (first + i) / op->group;
        head[i] = kv_head * op->group + (first + i) % op->group;
        const int64_t needed = oe_attention_pieces(op->plan.end[row[i]]);
        pieces = needed > pieces ? needed : pieces;
    }
    for (int64_t number = 0; number < pieces; number++) {
        oe_attention_query queries[QUERIES];
        for (int64_t i = 0; i < n; i++) {
            queries[i] = query_in(op, row[i], head[i], number, (number ? partial : sum) + i * op->stride);
        }
        attend(op, begin, number, kv_head, queries, n);
        for (int64_t i = 0; number && i < n; i++) {
            if (queries[i].first < queries[i].end) {
                op->params->kernel->add(sum + i * op->stride, partial + i * op->stride, op->value_dim);
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        finish(op, row[i], head[i], sum + i * op->stride);
    }
}

/* Head by head, so that the keys and values that bands have in common stay in the L2 cache. */
static void do_bands(const operation *op, int64_t first, int64_t last) {
    const int64_t most = most_queries(op->value_dim);
    for (int64_t i = first; i < last; i++) {
        const int64_t band = i % *op->plan.n_bands, kv_head = i / *op->plan.n_bands;
        const int64_t n = (op->plan.band[band + 1] - op->plan.band[band]) * op->group;
        for (int64_t at = 0; at < n; at += most) {
            do_queries(op, band, kv_head, at, n - at < most ? n - at : most);
        }
    }
}

void oe_attention_op(struct ggml_tensor *dst, int ith, int nth, void *params) {
    const oe_attention_params *given = params;
    const operation op = operation_of(dst, ith, given);
    const bool many = goes_by_bands(&op, nth);
    const int64_t bands = *op.plan.n_bands, parts = many ? 1 : parts_of_bands(&op, nth);
    const int64_t units = op.kv_heads * (many ? bands : parts * op.plan.band_piece[bands]);
    int64_t first, last;
    while (ith < given->threads && oe_take_chunk(op.plan.taken, units, nth, &first, &last)) {
        if (many) {
            do_bands(&op, first, last);
        } else {
            do_pieces(&op, parts, first, last);
        }
    }
    oe_leave_chunks(op.plan.taken, units, nth);
}
