from libc.stdint cimport int64_t, uint64_t

from ollama_engine.ml.ggml cimport libggml as lib


cdef uint64_t structure_of(lib.ggml_context *ctx, lib.ggml_cgraph *graph) except? 0
cdef int64_t work_of_operation(lib.ggml_cgraph *graph) noexcept
cdef int64_t work_of_device(lib.ggml_cgraph *graph, lib.ggml_backend_sched_t sched, lib.ggml_backend_t device) noexcept
cdef int check_plan_memory(lib.ggml_cgraph *graph) except -1
cdef size_t bytes_unshared(lib.ggml_context *ctx) noexcept
cdef int most_alive(lib.ggml_context *ctx, lib.ggml_cgraph *graph) except -1
cdef int expand_graph(lib.ggml_context *ctx, lib.ggml_cgraph *graph, lib.ggml_tensor *output) except -1
