// What the files of the expert cache share (expert_cache.h): its layers and matrices, what is in memory, what is read.
//
// Parts that a step waits for are read first. Only while none waits are those read that the next layer will probably
// choose. Such a guess takes memory when its reading begins, and is forgotten when its layer chooses others before.
#ifndef OE_EXPERT_LAYERS_H
#define OE_EXPERT_LAYERS_H

#include <pthread.h>
#include <stdbool.h>

#include "threads/expert_cache.h"

enum { OE_MOST_READERS = 16, OE_MOST_MATRICES = 8, OE_MOST_RANKS = 32 };

// Of an expert's part of a matrix. GUESSED is read unless its layer chooses others before; QUEUED is awaited.
enum { OE_ABSENT, OE_GUESSED, OE_QUEUED, OE_READING, OE_PRESENT };

typedef struct {
    float used;     // part of the rounds, lately, in which the router chose it
    bool held;      // it has memory: some part is queued, being read, or present
    bool unused;    // its reading began by a guess, and no visit has chosen it since
    uint64_t round; // the last visit of its layer that chose it
    uint64_t guess; // the last guess that named it
    int rank;       // its place in that guess; 0: the most probable
} oe_expert;

typedef struct {
    int block, place, experts, matrices; // number of its block; place among the layers
    oe_expert_matrix *matrix[OE_MOST_MATRICES];
    oe_expert *expert;
    uint64_t round;              // the latest visit
    uint64_t guess;              // the latest guess; 0 once a visit was compared with it
    float trust[OE_MOST_RANKS];  // part of the guesses of each rank, lately, that came true
    unsigned waited;             // bits of the matrices that were waited for in this visit
    size_t nbytes;               // of one expert, in whole pages
} oe_expert_layer;

struct oe_expert_matrix {
    oe_expert_cache *cache;
    oe_expert_layer *layer;
    unsigned bit;
    oe_expert_file file;
    int64_t offset;
    size_t nbytes;
    char *memory;
    unsigned char *state; // by expert
};

typedef struct {
    oe_expert_matrix *matrix;
    int expert;
} oe_expert_part;

// A ring with room for every part of a model.
typedef struct {
    oe_expert_part *part;
    size_t first, waiting;
} oe_part_queue;

struct oe_expert_cache {
    pthread_mutex_t lock;
    pthread_cond_t queued, done;
    pthread_t reader[OE_MOST_READERS];
    int readers, reading, ahead; // threads, how many of them read now, and how many of these read a guess
    bool ends;
    int error;
    size_t page, limit, held;
    uint64_t rounds, guesses;
    oe_expert_layer **layer;
    int layers;
    oe_expert_layer *now, *next; // the layer that computes, and the one that the latest guess is for
    size_t parts;
    oe_part_queue asked, guessed;
    oe_expert_counts counts;
};

// A thread that reads parts until the cache ends.
void *oe_read_experts(void *cache);

// The others are called with the lock held.

void oe_queue_part(oe_expert_cache *cache, oe_part_queue *queue, oe_expert_part part, unsigned char state);

// Forgets guesses whose reading has not begun.
void oe_forget_guesses(oe_expert_cache *cache);

// Takes an expert's memory into account, for which others are dropped: those whose next use is expected last, and none
// that the layer that computes needs. Guesses make room for each other in no case, and get none where none is left.
bool oe_hold_expert(oe_expert_cache *cache, oe_expert_layer *layer, int expert, bool guess);

void oe_drop_expert(oe_expert_cache *cache, oe_expert_layer *layer, int expert);

#endif
