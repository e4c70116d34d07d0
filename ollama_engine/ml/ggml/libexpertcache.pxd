# csrc/threads/expert_cache.h

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

from ollama_engine.ml.ggml.libggml cimport ggml_tensor


cdef extern from "threads/expert_cache.h" nogil:
    ctypedef struct oe_expert_cache:
        pass
    ctypedef struct oe_expert_matrix:
        pass
    ctypedef struct oe_expert_file:
        int direct
        int plain
    ctypedef struct oe_expert_counts:
        uint64_t uses
        uint64_t misses
        uint64_t bytes_read
        uint64_t guesses
        uint64_t guessed_right
        uint64_t reading
        uint64_t ahead
        uint64_t ahead_used

    oe_expert_cache *oe_expert_cache_new(int threads)
    oe_expert_matrix *oe_expert_cache_add(oe_expert_cache *cache, int block, int experts, oe_expert_file file,
                                          int64_t offset, size_t nbytes, char *memory)
    void oe_expert_cache_limit(oe_expert_cache *cache, size_t nbytes)
    size_t oe_expert_cache_layer_bytes(const oe_expert_cache *cache)
    void oe_expert_await_op(ggml_tensor *dst, int ith, int nth, void *matrix)
    void oe_expert_guess_op(ggml_tensor *dst, int ith, int nth, void *matrix)
    int oe_expert_cache_error(oe_expert_cache *cache)
    void oe_expert_cache_drop(oe_expert_cache *cache)
    oe_expert_counts oe_expert_cache_counts(oe_expert_cache *cache)
    void oe_expert_cache_free(oe_expert_cache *cache)
