/* The 16 numbers that codes of IQ4_NL and IQ4_XS name. */
#ifndef OE_SB_IQ4_LEVELS_H
#define OE_SB_IQ4_LEVELS_H

#include <stdint.h>

static const int8_t LEVELS[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

#endif
