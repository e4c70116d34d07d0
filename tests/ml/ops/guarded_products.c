/* Products (csrc/kernels/small_batch) whose operands end where memory does: what follows may not be read, but for the
 * activations that kernel.h says. And products that get no memory of their own. Both give the bits of plain C.
 *
 *     guarded_products [quick]
 *
 * Linked with -Wl,--wrap=oe_thread_scratch. Prints what differs; a wild access ends it. Its status is 3 where this CPU
 * has plain C alone. */
#define _GNU_SOURCE
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "kernels/small_batch/kernel.h"
#include "kernels/small_batch/packed.h"
#include "kernels/small_batch/quads.h"

#define PAGE 4096
#define SIZES 16

typedef struct weights_type {
    oe_sb_type type;
    const char *name;
    size_t bytes;  /* of a block */
    int halves[2]; /* where its f16 factors lie, or -1 */
} weights_type;

static const weights_type TYPES[] = {
    {OE_SB_Q4_K, "q4_K", 144, {0, 2}},    {OE_SB_Q6_K, "q6_K", 210, {208, -1}}, {OE_SB_Q5_K, "q5_K", 176, {0, 2}},
    {OE_SB_Q3_K, "q3_K", 110, {108, -1}}, {OE_SB_Q2_K, "q2_K", 84, {80, 82}},   {OE_SB_IQ4_XS, "iq4_xs", 136, {0, -1}},
    {OE_SB_Q4_0, "q4_0", 18, {0, -1}},    {OE_SB_Q8_0, "q8_0", 34, {0, -1}},    {OE_SB_MXFP4, "mxfp4", 17, {-1, -1}},
    {OE_SB_Q4_1, "q4_1", 20, {0, 2}},     {OE_SB_Q5_0, "q5_0", 22, {0, -1}},    {OE_SB_Q5_1, "q5_1", 24, {0, 2}},
    {OE_SB_IQ4_NL, "iq4_nl", 18, {0, -1}}, {OE_SB_F16, "f16", 32, {-1, -1}},
    {OE_SB_BF16, "bf16", 32, {-1, -1}},   {OE_SB_F16_WHOLE, "f16_whole", 32, {-1, -1}},
};
#define N_TYPES (sizeof TYPES / sizeof *TYPES)

/* -- memory -------------------------------------------------------------------------------------------------------- */

void *__real_oe_thread_scratch(size_t size);

static bool no_memory;
static long denied;

void *__wrap_oe_thread_scratch(size_t size) {
    denied += no_memory;
    return no_memory ? NULL : __real_oe_thread_scratch(size);
}

static size_t whole_pages(size_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

/* n bytes behind which, and somewhere in front of which, nothing can be read. */
static char *guarded(size_t n) {
    const size_t size = whole_pages(n);
    char *p = mmap(NULL, size + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED || mprotect(p + PAGE, size, PROT_READ | PROT_WRITE) != 0) {
        perror("guarded_products");
        exit(2);
    }
    return p + PAGE + size - n;
}

static void release(char *p, size_t n) { munmap(p + n - whole_pages(n) - PAGE, whole_pages(n) + 2 * PAGE); }

/* -- operands ------------------------------------------------------------------------------------------------------ */

static bool is_float(const weights_type *t) { return t->type >= OE_SB_F16; }

/* Random codes; factors around 1/16, in both signs, and so the weights of 16 bits. */
static void fill_weights(const weights_type *t, char *weights, size_t blocks) {
    for (size_t i = 0; i < blocks * t->bytes; i++) {
        weights[i] = (char)rand();
    }
    for (size_t b = 0; b < blocks; b++) {
        uint8_t *block = (uint8_t *)weights + b * t->bytes;
        for (int i = 0; i < 2 && t->halves[i] >= 0; i++) {
            block[t->halves[i] + 1] = (uint8_t)((block[t->halves[i] + 1] & 0x83) | 0x28);
        }
        for (size_t i = 1; is_float(t) && i < t->bytes; i += 2) {
            block[i] = (uint8_t)((block[i] & 0x83) | 0x28);
        }
        if (t->halves[0] < 0 && !is_float(t)) {
            block[0] = (uint8_t)(120 + rand() % 8);
        }
    }
}

static void fill_acts(const oe_sb_kernel *kernel, int64_t blocks, int64_t rows, char *acts) {
    const int64_t quads = (blocks + OE_QUAD - 1) / OE_QUAD;
    float x[OE_QUAD * 256];
    for (int64_t q = 0; q < quads; q++) {
        for (int64_t r = 0; r < rows; r++) {
            for (size_t i = 0; i < sizeof x / sizeof *x; i++) {
                x[i] = (float)(rand() % 2001 - 1000) / 100.0f;
            }
            oe_quad quad;
            oe_quad_quantize(kernel, x, blocks - q * OE_QUAD, &quad);
            oe_quad_put(kernel, &quad, false, quads, rows, q, r, acts);
        }
    }
}

/* -- products ------------------------------------------------------------------------------------------------------ */

typedef struct expectation {
    const weights_type *t;
    oe_sb_product product;
    const char *acts, *packed;
    const float *results;
    int isa;
} expectation;

static int differs(const expectation *e, oe_sb_multiply multiply, const char *acts, int64_t step, const char *what) {
    oe_sb_product p = e->product;
    const size_t bytes = sizeof(float) * (size_t)(p.m * p.rows);
    char *out = guarded(bytes);
    memset(out, 0xff, bytes);
    p.out = (float *)(void *)out;
    p.acts = acts;
    for (int64_t first = 0; first < p.m; first += step) {
        multiply(&p, first, first + step < p.m ? first + step : p.m);
    }
    const int found = memcmp(out, e->results, bytes) != 0;
    if (found) {
        printf("%s, instruction set %d, m %ld, blocks %ld, rows %ld: %s\n", e->t->name, e->isa, (long)p.m,
               (long)p.blocks, (long)p.rows, what);
    }
    release(out, bytes);
    return found;
}

/* With the activations as multiply_interleaved of this kernel wants them. */
static int interleaved_differs(const expectation *e, const oe_sb_kernel *k, const char *what) {
    const size_t quads = (size_t)((e->product.blocks + OE_QUAD - 1) / OE_QUAD * e->product.rows);
    const size_t bytes = oe_quad_bytes(k);
    char *acts = guarded(quads * bytes);
    for (size_t i = 0; i < quads; i++) {
        oe_quad quad;
        memcpy(quad.bytes, e->acts + i * bytes, bytes);
        oe_quad_store(k, &quad, true, acts + i * bytes);
    }
    const int found = differs(e, k->multiply_interleaved, acts, e->product.m, what);
    release(acts, quads * bytes);
    return found;
}

static long compared;

static int check(const expectation *e) {
    const oe_sb_kernel *k = oe_sb_kernel_find(e->t->type, (oe_sb_isa)e->isa, e->product.m);
    if (!k) {
        return 0;
    }
    int bad = 0;
    compared++;
    no_memory = true;
    bad += differs(e, k->multiply, e->acts, e->product.m, "without memory");
    no_memory = false;
    bad += differs(e, k->multiply, e->acts, e->product.m, "all at once");
    bad += differs(e, k->multiply, e->acts, 2 * OE_SB_GROUP, "by parts");
    if (k->packs) {
        expectation packed = *e;
        packed.product.packed = e->packed;
        bad += differs(&packed, k->multiply, e->acts, 2 * OE_SB_GROUP, "packed");
    }
    if (e->product.rows <= k->interleaved) {
        bad += interleaved_differs(e, k, "interleaved");
        expectation two = *e;
        two.product.variant = (oe_sb_variant){OE_SB_FETCH_BURST, true};
        bad += interleaved_differs(&two, k, "interleaved, two streams");
    }
    return bad;
}

static void pack(const char *acts, int64_t blocks, int64_t rows, char *packed) {
    oe_act_panel *const panels = (oe_act_panel *)(void *)packed;
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t number = 0; number * OE_QUAD < blocks; number++) {
            const oe_act32 *const quad = (const oe_act32 *)(const void *)acts + (number * rows + row) * OE_QUAD;
            oe_pack_quad(quad, blocks, number, row % 32, panels + row / 32 * oe_chunks(blocks));
        }
    }
    if (rows % 32) {
        oe_pack_zeros(blocks, rows % 32, panels + rows / 32 * oe_chunks(blocks));
    }
}

/* Rows of weights lie so many blocks `apart`, as those of a view of columns do. */
static int compare(const weights_type *t, int64_t m, int64_t blocks, int64_t apart, int64_t rows) {
    const oe_sb_kernel *plain = oe_sb_kernel_find(t->type, OE_SB_PLAIN, m);
    const size_t row_bytes = t->bytes * (size_t)(blocks + apart), all = row_bytes * (size_t)m;
    const size_t acts_bytes = (size_t)oe_acts_bytes(plain, blocks * plain->block, rows);
    const bool packs = plain->block == 32 && plain->act_bytes == sizeof(oe_act32);
    const size_t packed_bytes = packs ? (size_t)((rows + 31) / 32 * oe_chunks(blocks)) * sizeof(oe_act_panel) : 64;
    char *weights = guarded(all), *acts = guarded(acts_bytes);
    char *packed = guarded(packed_bytes);
    float *results = malloc(sizeof *results * (size_t)(m * rows));
    fill_weights(t, weights, (size_t)((blocks + apart) * m));
    memset(acts, 0x55, acts_bytes);
    fill_acts(plain, blocks, rows, acts);
    memset(packed, 0xff, packed_bytes);
    if (packs) {
        pack(acts, blocks, rows, packed);
    }
    const oe_sb_product product = {
        .weights = (uint8_t *)weights + (size_t)apart * t->bytes, .row_bytes = row_bytes, .acts = acts, .blocks = blocks, .m = m, .rows = rows,
        .out = results,
    };
    expectation e = {t, product, acts, packed, results, 0};
    plain->multiply(&e.product, 0, m);
    int bad = 0;
    for (e.isa = OE_SB_PLAIN + 1; e.isa < OE_SB_ISAS; e.isa++) {
        bad += check(&e);
    }
    free(results);
    release(weights, all);
    release(acts, acts_bytes);
    release(packed, packed_bytes);
    return bad;
}

int main(int n, char **arguments) {
    if (n > 1 && strcmp(arguments[1], "sets") == 0) { /* which instruction sets this CPU has kernels for */
        printf("%s%s", oe_sb_kernel_find(OE_SB_Q4_0, OE_SB_NEON, 64) ? "neon " : "",
               oe_sb_kernel_find(OE_SB_Q4_0, OE_SB_I8MM, 64) ? "i8mm" : "");
        return 0;
    }
    const bool quick = n > 1 && strcmp(arguments[1], "quick") == 0;
    static const int64_t m[] = {16, 17, 85}, blocks[] = {1, 6, 37};
    static const int64_t rows[SIZES] = {1, 5, 13, 33, 2, 3, 4, 6, 7, 8, 9, 15, 16, 17, 20, 70};
    int bad = 0;
    for (size_t t = 0; t < N_TYPES; t++) {
        bad += compare(&TYPES[t], 16, 6, 7, 1) + compare(&TYPES[t], 17, 6, 7, 3);
        if (is_float(&TYPES[t])) { /* more rows of weights than are taken at a time, which are packed for 70 */
            bad += compare(&TYPES[t], 205, 127, 0, 13) + compare(&TYPES[t], 205, 127, 3, 70);
        }
        for (size_t i = 0; i < 9; i += quick ? 4 : 1) {
            for (size_t r = 0; r < (quick ? 4 : SIZES); r++) {
                bad += compare(&TYPES[t], m[i % 3], blocks[i / 3], 0, rows[r]);
            }
        }
    }
    const bool panels = oe_sb_kernel_find(OE_SB_Q4_0, OE_SB_AVX512, 64) != NULL; /* or tiles, which need AVX-512, too */
    if (panels && denied == 0) {
        printf("no kernel asked for memory\n");
    }
    return compared == 0 ? 3 : bad != 0 || (panels && denied == 0);
}
