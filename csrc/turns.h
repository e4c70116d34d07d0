/* Turns at the CPUs, for all computations of the process: together they never run more threads than there are CPUs.
 *
 * ggml's threads wait for each other by spinning. Two pools of as many threads as there are CPUs keep each other from
 * getting on: both engines together then make a fraction of what one makes alone. Turns are taken in the order of
 * arrival, one graph each. */
#ifndef OE_TURNS_H
#define OE_TURNS_H

#ifdef __cplusplus
extern "C" {
#endif

typedef struct oe_turn {
    int threads;         /* that a computation runs; 0 takes no turn */
    int cpus;            /* that there are */
    void (*rest)(void *); /* called with `pool` after a computation for which another one waits: threads that would go on
                            spinning for a while go to sleep */
    void *pool;
} oe_turn;

/* task(argument), when its turn has come. Returns what it returns; it must not throw. */
int oe_in_turn(const oe_turn *turn, int (*task)(void *), void *argument);

#ifdef __cplusplus
}
#endif

#endif
