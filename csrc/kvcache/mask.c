#include "kvcache/mask.h"

#include <string.h>

#include "base/target_clones.h"

#define SEEN ((uint16_t)0x0000)   /* f16 0 */
#define HIDDEN ((uint16_t)0xfc00) /* f16 minus infinity */
#define HALF 32                   /* shifts by 32-bit lanes are what every instruction set has */

OE_TARGET_CLONES
static void hide(uint16_t *restrict mask, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        mask[i] = HIDDEN;
    }
}

/* One word of a sequence's cells as f16. */
static inline void show_word(uint64_t bits, uint16_t *restrict mask) {
    for (int h = 0; h < 64; h += HALF) {
        const uint32_t half = (uint32_t)(bits >> h);
        for (int j = 0; j < HALF; j++) {
            mask[h + j] = (uint16_t)((half >> j & 1) - 1) & HIDDEN; /* SEEN is 0 */
        }
    }
}

/* The row of a token that sees all of its sequence: cells low..high-1, mask[0] is that of `low`. */
OE_TARGET_CLONES
static void show_all(const uint64_t *restrict mine, int32_t low, int32_t high, uint16_t *restrict mask) {
    uint16_t part[64];
    int32_t cell = low;
    if (cell & 63) {
        const int32_t n = 64 - (cell & 63) < high - cell ? 64 - (cell & 63) : high - cell;
        show_word(mine[cell >> 6], part);
        memcpy(mask, part + (cell & 63), (size_t)n * sizeof *mask);
        cell += n;
    }
    for (; high - cell >= 64; cell += 64) {
        show_word(mine[cell >> 6], mask + (cell - low));
    }
    if (cell < high) {
        show_word(mine[cell >> 6], part);
        memcpy(mask + (cell - low), part, (size_t)(high - cell) * sizeof *mask);
    }
}

/* own[cell]: the position of a cell of the sequence, -1 of another; for whole words of cells, from low's to high's. */
OE_TARGET_CLONES
static void own_positions(const uint64_t *restrict mine, const int32_t *restrict position, int32_t low, int32_t high,
                          int32_t *restrict own) {
    for (int32_t w = low >> 6; w <= (high - 1) >> 6; w++) {
        const int32_t *at = position + ((int64_t)w << 6);
        int32_t *to = own + ((int64_t)w << 6);
        for (int h = 0; h < 64; h += HALF) {
            const uint32_t half = (uint32_t)(mine[w] >> h);
            for (int j = 0; j < HALF; j++) {
                to[h + j] = at[h + j] | (int32_t)((half >> j & 1) - 1);
            }
        }
    }
}

/* 0 <= first <= last: -1 is farther from `first` than any position. */
OE_TARGET_CLONES
static void show_between(const int32_t *restrict own, int32_t n, int32_t first, int32_t last, uint16_t *restrict mask) {
    const uint32_t span = (uint32_t)last - (uint32_t)first;
    for (int32_t i = 0; i < n; i++) {
        mask[i] = (uint32_t)own[i] - (uint32_t)first <= span ? SEEN : HIDDEN;
    }
}

void oe_mask_fill(const oe_cells *cells, int32_t begin, int32_t end, const int32_t *sequence, const int32_t *first,
                  const int32_t *last, int64_t n, uint16_t *mask) {
    int32_t known = -1; /* the sequence whose positions the scratch has */
    for (int64_t i = 0; i < n; i++, mask += end - begin) {
        const int32_t s = sequence[i], from = first[i] > 0 ? first[i] : 0;
        const oe_sequence *one = &cells->sequence[s];
        const int32_t low = one->lowest > begin ? one->lowest : begin;
        const int32_t high = one->highest < end ? one->highest + 1 : end;
        if (one->count == 0 || low >= high || from > last[i]) {
            hide(mask, end - begin);
            continue;
        }
        hide(mask, low - begin);
        hide(mask + (high - begin), end - high);
        if (from <= one->first && last[i] >= one->last) {
            show_all(oe_cells_mine(cells, s), low, high, mask + (low - begin));
            continue;
        }
        if (known != s) {
            own_positions(oe_cells_mine(cells, s), cells->position, low, high, cells->scratch);
            known = s;
        }
        show_between(cells->scratch + low, high - low, from, last[i], mask + (low - begin));
    }
}
