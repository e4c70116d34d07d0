/* What LDTILECFG reads: palette 1 has eight tiles of up to 16 rows and 64 bytes. GCC's header says that only 8 of its
 * bytes are read, so it must not be a local. */
#ifndef OE_TILE_CONFIG_H
#define OE_TILE_CONFIG_H

#include <stdint.h>

typedef struct oe_tile_config {
    uint8_t palette, start;
    uint8_t reserved[14];
    uint16_t bytes[16]; /* of a row of each tile */
    uint8_t rows[16];
} oe_tile_config;

#endif
