/* Replaces amx_kernel.c where the compiler has no AMX. These functions are never called: oe_amx_allowed is false. */
#include "kernels/amx/amx.h"

void oe_amx_begin(void) {}

void oe_amx_end(void) {}

void oe_amx_split(const float *x, int64_t n, int64_t padded, oe_bf16 *to, int64_t apart, int parts) {
    (void)x, (void)n, (void)padded, (void)to, (void)apart, (void)parts;
}

void oe_amx_pack(const float *x, int64_t k_step, int64_t column_step, int64_t n_k, int64_t n_columns, oe_bf16 *to,
                 int64_t apart, int parts) {
    (void)x, (void)k_step, (void)column_step, (void)n_k, (void)n_columns, (void)to, (void)apart, (void)parts;
}

void oe_amx_multiply(const oe_amx_product *p, int64_t row, int64_t column) { (void)p, (void)row, (void)column; }

void oe_amx_attend(const oe_amx_attention *a, int64_t row) { (void)a, (void)row; }
