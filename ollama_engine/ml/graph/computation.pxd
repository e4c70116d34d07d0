from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.backend cimport Backend
from ollama_engine.ml.ggml.libcompute cimport oe_compute_job
from ollama_engine.ml.graph.tensor cimport Graph
from ollama_engine.ml.graph.uploads cimport SavedOperands


cdef class Computation(Graph):
    cdef readonly Backend backend
    cdef readonly int max_nodes
    cdef lib.ggml_cgraph *graph
    # -- tensors made so far; constants by address --
    cdef size_t used_at_start
    cdef list inputs
    cdef set unwritten
    cdef set placed
    cdef SavedOperands operands  # None where there is one device
    # -- state --
    cdef dict limits
    cdef bint has_outputs
    cdef bint attached
    # The backend's `memory_number` when it was attached.
    cdef uint64_t memory_number
    cdef bint computed
    cdef oe_compute_job job
    # What an operation computes on average, and what the CPU computes beside other devices.
    cdef int64_t work_of_one
    cdef int64_t work_of_cpu
    # When it was launched, and how long after that it was waited for the last time (-1: never); nanoseconds.
    cdef int64_t launched
    cdef int64_t meanwhile

    cdef int begin(self, Backend backend, int max_nodes) except -1
    cdef int64_t count(self) noexcept
    cdef int settle(self) except -1
    cdef bint is_launched(self) noexcept
    cdef int make_ready(self) except -1
    cdef int finish(self, int status) except -1
    cdef int prepare(self) except -1
    cdef int measure_into(self, size_t *sizes) except -1
    cdef int plan(self, uint64_t structure) except -1
    cdef int allocate(self) except -1
    cdef bint has_memory(self) noexcept
    cdef int assign_devices(self) except -1
    cdef int detach(self) except -1
    cdef int restore_operands(self) except -1
    cdef int forget_inputs(self) except -1
    cdef int check_inputs(self) except -1
