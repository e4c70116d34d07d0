from ollama_engine.ml.ggml.libexpertcache cimport oe_expert_cache, oe_expert_matrix


cdef class ExpertCache:
    cdef oe_expert_cache *ptr
    cdef int pid
    cdef list memories
    cdef list descriptors

    cdef int _free(self) except -1
    cdef int _check(self) except -1


cdef class CachedExperts:
    cdef readonly ExpertCache cache
    cdef oe_expert_matrix *ptr
