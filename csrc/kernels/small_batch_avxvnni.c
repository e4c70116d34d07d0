/* The kernels of small_batch_avx2.c with VPDPBUSD. Compiled with AVX2 and AVX-VNNI switched on; called where the CPU
 * has them, as Intel's without AVX-512 do since 2021. */
#define OE_SB_VNNI
#include "kernels/small_batch_avx2.c"
