/* The product (kernel.h) of a quantized weight type in plain C; the vector kernels must equal it bit by bit. A file
 * defines before it includes this:
 *
 *     BLOCK_BYTES     size of a block of weights
 *     weight_block    an unpacked block of weights
 *     act_block       the type of a block of activations, oe_act256 or oe_act32
 *     static void unpack(const uint8_t *p, weight_block *x)
 *     static float product(const weight_block *x, const act_block *act) */

#define TILE 8 /* rows of activations whose sums are kept while a weight row is unpacked, block after block */

static void oe_multiply_tile(const oe_sb_product *p, int64_t i, int64_t row, int64_t n_tile) {
    const uint8_t *block = p->weights + (size_t)i * p->row_bytes;
    float sum[TILE][OE_QUAD] = {{0}};
    for (int64_t b = 0; b < p->blocks; b++, block += BLOCK_BYTES) {
        const act_block *act = (const act_block *)p->acts + (b / OE_QUAD * p->rows + row) * OE_QUAD + b % OE_QUAD;
        weight_block x;
        unpack(block, &x);
        for (int64_t n = 0; n < n_tile; n++) {
            sum[n][b % OE_QUAD] += product(&x, act + n * OE_QUAD);
        }
    }
    for (int64_t n = 0; n < n_tile; n++) {
        oe_sb_out(p, row + n)[i] = (sum[n][0] + sum[n][1]) + (sum[n][2] + sum[n][3]);
    }
}

static void oe_multiply(const oe_sb_product *p, int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i++) {
        for (int64_t row = 0; row < p->rows; row += TILE) {
            oe_multiply_tile(p, i, row, p->rows - row < TILE ? p->rows - row : TILE);
        }
    }
}

#define MULTIPLY_INTERLEAVED NULL
#define INTERLEAVED_ROWS 0
#define WHOLE 0
#define MOST_MISSING 0
