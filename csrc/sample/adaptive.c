/* Compiled with -ffp-contract=off, like dist.c. */
#include "sample/adaptive.h"

#include <math.h>

/* The pull request's constants: near the target a parabola, further away a slope. */
#define WIDTH 0.3
#define PEAK 5.0
#define SHARPNESS 10.0

oe_adaptive oe_adaptive_begin(double target, double decay) {
    return (oe_adaptive){target / (1.0 - decay), 1.0 / (1.0 - decay)};
}

void oe_adaptive_accept(oe_adaptive *state, double decay, double probability) {
    state->sum = probability + decay * state->sum;
    state->weight = 1.0 + decay * state->weight;
}

double oe_adaptive_mean(const oe_adaptive *state) { return state->sum / state->weight; }

void oe_adaptive_transform(const oe_adaptive *state, double target, oe_pool *pool, uint64_t *weights) {
    const double total = (double)oe_pool_weigh(pool);
    double wanted = 2.0 * target - oe_adaptive_mean(state);
    wanted = wanted > 0.0 ? (wanted < 1.0 ? wanted : 1.0) : 0.0;
    float max = -INFINITY;
    for (int32_t i = 0; i < pool->n; i++) {
        weights[i] = pool->dist.candidates[i].weight;
        const double distance = fabs((double)weights[i] / total - wanted) / WIDTH;
        pool->dist.x[i] = (float)(PEAK - SHARPNESS * distance * distance / (1.0 + distance));
        max = pool->dist.x[i] > max ? pool->dist.x[i] : max;
    }
    pool->max = max;
    pool->inverse = 1.0;
}

double oe_adaptive_probability(const oe_pool *pool, const uint64_t *weights, int32_t token) {
    uint64_t total = 0, found = 0;
    for (int32_t i = 0; i < pool->n; i++) {
        total += weights[i];
        found = pool->dist.id[i] == token ? weights[i] : found;
    }
    return (double)found / (double)(total ? total : 1);
}
