from ollama_engine.ml cimport libggml as lib


cdef class Backend:
    # -- handles, freed by close() --
    cdef lib.ggml_backend_t handles[17]
    cdef int n_handles
    cdef lib.ggml_backend_sched_t sched
    cdef lib.ggml_threadpool_t threadpool
    # -- configuration --
    cdef readonly object params
    cdef readonly tuple devices
    cdef readonly int threads
    cdef readonly int max_nodes
    # -- state --
    cdef object lock
    cdef object members
    cdef object allocated
    cdef object __weakref__

    cdef int check_open(self) except -1
    cdef lib.ggml_backend_buffer_type_t buffer_type(self, int device) noexcept
    cdef lib.ggml_backend_buffer_type_t cpu_buffer_type(self) noexcept
