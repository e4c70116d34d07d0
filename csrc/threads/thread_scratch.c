#include "threads/thread_scratch.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

typedef struct memory {
    size_t size;
    void *at;
} memory;

static pthread_key_t key;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;
static bool usable;

static void free_memory(void *of) {
    free(((memory *)of)->at);
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
        free(mine->at);
        mine->size = (size + 63) / 64 * 64;
        mine->at = aligned_alloc(64, mine->size);
        mine->size = mine->at ? mine->size : 0;
    }
    return mine->at;
}
