/* Compiled once for each instruction set; OE_RECURRENT_KERNEL is the kernel's name. */
#include "kernels/recurrent/kernel.h"

#include "kernels/recurrent/convolution.h"
#include "kernels/recurrent/delta_net.h"
#include "kernels/recurrent/ssm_scan.h"

const oe_recurrent_kernel OE_RECURRENT_KERNEL = {transpose, convolve, delta_net, ssm_scan};
