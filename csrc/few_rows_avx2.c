#include "few_rows.h"
const oe_few_kernel oe_few_avx2[OE_FEW_TYPES];
