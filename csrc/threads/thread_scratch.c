#include "threads/thread_scratch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#define LINE 64

typedef struct memory {
    size_t size;
    void *block;
    void *at; // in the block, at the start of a cache line: Windows has no aligned_alloc
} memory;

static pthread_key_t key;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static bool usable;

static void free_memory(void *of) {
    free(((memory *)of)->block);
    free(of);
}

static void prepare(void) { usable = pthread_key_create(&key, free_memory) == 0; }

static memory *own(void) {
    pthread_once(&prepared, prepare);
    memory *mine = usable ? pthread_getspecific(key) : NULL;
    if (usable && !mine && (mine = calloc(1, sizeof *mine)) && pthread_setspecific(key, mine) != 0) {
        free(mine);
        mine = NULL;
    }
    return mine;
}

void *oe_thread_scratch(size_t size) {
    memory *const mine = own();
    if (!mine) {
        return NULL;
    }
    if (mine->size < size) {
        free(mine->block);
        mine->size = (size + LINE - 1) / LINE * LINE;
        mine->block = malloc(mine->size + LINE - 1);
        mine->at = (void *)(((uintptr_t)mine->block + LINE - 1) / LINE * LINE);
        mine->size = mine->block ? mine->size : 0;
    }
    return mine->at;
}
