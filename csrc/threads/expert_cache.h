// Experts of a mixture (MoE) that is larger than memory: a bounded number of them in memory, the others in the file.
//
// Every matrix has memory of its full size, at addresses that never change. An expert's part of it holds its weights
// while it is in the cache, and no pages otherwise. Threads of the cache read parts from the file, several at once and
// past the page cache, where the system can: the system's own reading ahead reads neighbours that nobody asked for, and
// its choice of what to drop knows nothing of layers.
//
// Which expert makes room: the one whose next use is expected last. Layers are computed in turn, so that a use is as
// far away as its layer, and a whole round more for each time that the router will probably leave the expert out.
#ifndef OE_EXPERT_CACHE_H
#define OE_EXPERT_CACHE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_tensor;

typedef struct oe_expert_cache oe_expert_cache;
typedef struct oe_expert_matrix oe_expert_matrix;

// A file, opened twice. `direct` reads past the page cache; -1 where the file system cannot.
typedef struct {
    int direct, plain;
} oe_expert_file;

typedef struct {
    uint64_t uses, misses, bytes_read;
    uint64_t guesses, guessed_right; // experts that were guessed of the next layer, and those of them that it chose
    uint64_t reading;                // parts that wait to be read or are being read, now
    uint64_t ahead, ahead_used;      // experts whose reading began by a guess, and those of them that were used
} oe_expert_counts;

// Returns NULL where there is no memory, or no thread can be started.
oe_expert_cache *oe_expert_cache_new(int threads);

// Adds a matrix of a block's experts, of which each has `nbytes`, from byte `offset` of the file on. They go into
// `memory`, whose first byte lies in its page as `offset` does. Matrices of a block are added one behind the other, and
// read in that order; blocks, in the order in which they are computed. Returns NULL where there is no memory. Call it
// before the cache is used.
oe_expert_matrix *oe_expert_cache_add(oe_expert_cache *cache, int block, int experts, oe_expert_file file,
                                      int64_t offset, size_t nbytes, char *memory);

// Most bytes that experts take from now on. Experts of the layer that computes are kept, even if they take more.
void oe_expert_cache_limit(oe_expert_cache *cache, size_t nbytes);

// Bytes that the experts of the largest layer take.
size_t oe_expert_cache_layer_bytes(const oe_expert_cache *cache);

// A ggml custom operation for one thread: returns when the experts that src[0], ids i32 [used, tokens], names are in
// the memory of `matrix`, an oe_expert_matrix. Those of the layer's other matrices are being read then. An id that is
// no expert counts as the nearest one.
void oe_expert_await_op(struct ggml_tensor *dst, int ith, int nth, void *matrix);

// As oe_expert_await_op, but returns at once: ids name the experts that the layer of `matrix` will probably choose, of
// each token the most probable first. Absent ones are read while the layer before it computes, from when on its experts
// are awaited and nothing else is to be read; ranks of guesses that came true too rarely are not.
void oe_expert_guess_op(struct ggml_tensor *dst, int ith, int nth, void *matrix);

// The errno of a part that could not be read since the last call, or 0. Its weights are then zeros, and all experts
// are dropped, so that they are read again. Nothing may compute.
int oe_expert_cache_error(oe_expert_cache *cache);

// Gives all memory back. Nothing may compute.
void oe_expert_cache_drop(oe_expert_cache *cache);

oe_expert_counts oe_expert_cache_counts(oe_expert_cache *cache);

// Ends the threads. The memory and the files are the caller's.
void oe_expert_cache_free(oe_expert_cache *cache);

#ifdef __cplusplus
}
#endif

#endif
