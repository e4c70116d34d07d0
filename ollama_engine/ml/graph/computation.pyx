"""Computation: memory for one graph, and running it. `Context` adds the making of its tensors.

All methods that look at the scheduler hold the backend's lock. Where ggml works with the GIL released, `Backend.busy`
names the graph it works on.
"""

from contextlib import suppress

from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t
from libcpp cimport bool

from ollama_engine.errors import ClosedError, ComputeError, DeviceLostError, NoMemoryError, ShapeError
from ollama_engine.ml.device.hostmem import available_bytes

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.backend cimport DEVICE_SLOTS, Backend
from ollama_engine.ml.graph.graph_walk cimport (
    bytes_unshared, check_plan_memory, most_alive, structure_of, work_of_operation,
)
from ollama_engine.ml.ggml.libcompute cimport OE_THREW, oe_compute, oe_nanoseconds
from ollama_engine.ml.graph.row_check cimport active_limits, check_rows
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, describe, root_of
from ollama_engine.ml.graph.uploads cimport SavedOperands

# Smaller allocations are not compared with the memory that the system has: asking takes 100 us.
cdef size_t SMALL = 64 * 1024
# ggml's planner tracks up to 256 gaps in its memory; there can be one beside every value that is alive.
cdef int MAX_ALIVE = 250


cdef class Computation(Graph):
    """The memory and the running of one graph on one backend.

    When it is freed the scheduler does not know the graph any more: `Backend.allocated` holds a reference.
    """

    cdef int begin(self, Backend backend, int max_nodes) except -1:
        backend.check_open()
        self.max_nodes = max_nodes
        self.is_graph = True
        self.backend = backend
        self.lock = backend.lock
        self.index_limits = []
        self.stored = {}
        self.rounded = {}
        self.kept = {}
        self.sources = {}
        self.inputs = []
        self.meanwhile = -1
        self.unwritten = set()
        self.placed, self.written = set(), set()
        self.start(lib.ggml_tensor_overhead() * max_nodes + lib.ggml_graph_overhead_custom(max_nodes, False) + 1024)
        self.graph = lib.ggml_new_graph_custom(self.ctx, max_nodes, False)
        self.used_at_start = lib.ggml_used_mem(self.ctx)
        self.is_open = True
        backend.enrol(self)
        return 0

    cdef int64_t count(self) noexcept:
        return (lib.ggml_used_mem(self.ctx) - self.used_at_start) // lib.ggml_tensor_overhead()

    cdef int charge(self, int tensors) except -1:
        if not self.is_open:
            raise ClosedError("this Context is closed; its tensors are gone")
        if self.count() + len(self.stored) + tensors > self.max_nodes:
            raise ShapeError(f"the graph has more than {self.max_nodes} tensors; give Context a larger max_nodes")
        return 0

    cdef int busy(self) except -1:
        if self.backend is None or self.backend.busy is not self:
            return 0
        if self.backend.launcher.running:
            raise ComputeError("this context is computing in the background; wait() for it first")
        return 1

    cdef int exchanged(self, lib.ggml_tensor *ptr, bint writing) except -1:
        if writing:
            self.unwritten.discard(<size_t>ptr)
        return self.backend.check_workers()

    cdef char *staged(self, lib.ggml_tensor *ptr) noexcept nogil:
        return self.backend.uploads.host_of(ptr)

    cdef int check_access(self, Tensor t, bint writing) except -1:
        cdef lib.ggml_tensor *root = root_of(t.ptr)
        if t.ptr.data == NULL or t.ptr.buffer == NULL:
            if writing:
                raise ShapeError(f"cannot write into {describe(t)}: it has no memory; call ctx.alloc() first")
            raise ShapeError(f"{describe(t)} has no values: compute its graph first, with it among the outputs")
        if writing and t.ptr.op != lib.GGML_OP_NONE and t.ptr.op != lib.GGML_OP_VIEW:
            raise ShapeError(f"cannot write into {describe(t)}: it is computed")
        if not self.owns(root):
            self.check_sources()
            return self.check_target(t, "set") if writing else 0
        if <size_t>root in self.placed:
            return 0
        if self.backend.allocated is not self:
            raise ShapeError(f"{describe(t)} has no memory any more: another context was allocated on this backend")
        if writing:
            if not root.flags & lib.GGML_TENSOR_FLAG_INPUT:
                raise ShapeError(f"cannot write into {describe(t)}: it is computed")
            self.backend.check_unmapped()
        elif self.computed and root.flags & lib.GGML_TENSOR_FLAG_OUTPUT:
            return 0
        elif not root.flags & lib.GGML_TENSOR_FLAG_INPUT or <size_t>root in self.unwritten:
            raise ShapeError(f"{describe(t)} has no values: compute its graph first, with it among the outputs")
        return 0

    # -- running -------------------------------------------------------------------------------------------------------

    cdef int settle(self) except -1:
        """Wait until this graph is not being computed, and take its memory back: it is going to change."""
        while self.backend.busy is self:
            with self.lock:
                self.backend.check_idle()
        if self.attached:
            with self.lock:
                self.backend.check_open()
                self.backend.check_idle()
                self.charge(0)
                self.detach()
        return 0

    @property
    def n_nodes(self):
        """Number of operations in the graph (ggml nodes; leaves such as weights do not count)."""
        self.charge(0)
        return lib.ggml_graph_n_nodes(self.graph)

    def measure(self):
        """Bytes that this graph's intermediate results need, {device name: bytes}; allocates nothing."""
        cdef size_t sizes[DEVICE_SLOTS]
        self.prepare()
        with self.lock:
            self.measure_into(sizes)
            return {d.name: sizes[i] for i, d in enumerate(self.backend.devices)}

    def reserve(self):
        """Make sure that a graph of this shape fits, by growing the backend's memory now. Raises NoMemoryError."""
        cdef size_t sizes[DEVICE_SLOTS]
        self.prepare()
        with self.lock:
            self.measure_into(sizes)
            self.backend.refuse_more_than_available(self.graph, sizes)
            self.plan(structure_of(self.ctx, self.graph))

    def alloc(self):
        """Give every tensor of the graph memory. The values that another context has on this backend are given up.

        A graph that had memory before gets the same, at once, where there is one device. Raises NoMemoryError, and
        ShapeError when more results wait to be used at once than ggml can plan for.
        """
        self.prepare()
        with self.lock:
            self.allocate()

    def compute(self):
        """Run the graph with the GIL released. Raises ShapeError for unset inputs or row numbers out of range,
        ComputeError or NoMemoryError when the backend fails.
        """
        cdef int status
        self.prepare()
        with self.lock:
            self.make_ready()
            self.backend.busy = self
            with nogil:
                status = oe_compute(&self.job)
            self.backend.busy = None
            self.finish(status)

    def launch(self):
        """Begin to compute in the background, as `compute` does; until `wait` the backend takes no other work.

        Building another context meanwhile is fine. Where `wait` came so soon the last time that the background would
        not pay, `wait` computes. Raises as `compute`.
        """
        self.prepare()
        with self.lock:
            self.make_ready()
            self.backend.launch(self, &self.job, self.meanwhile, self.work_of_cpu)
            self.launched = oe_nanoseconds()
            # Backend and Context refer to each other: without this, the collector could free them while they work.
            Py_INCREF(self)

    def wait(self):
        """Wait for what `launch` began, with the GIL released. Raises ComputeError and NoMemoryError as `compute`."""
        self.charge(0)
        self.backend.check_open()
        with self.lock:
            if not self.is_launched():
                raise ComputeError("nothing to wait for: launch() this context first")
            self.meanwhile = oe_nanoseconds() - self.launched
            status = self.backend.launcher.finish()
            self.backend.busy = None
            Py_DECREF(self)
            self.finish(status)

    def abandon(self):
        """End what `launch` began, if anything, and drop its result and its errors."""
        with self.lock:
            if self.is_launched():
                self.meanwhile = -1
                status = self.backend.launcher.drop()
                self.backend.busy = None
                Py_DECREF(self)
                with suppress(ComputeError, DeviceLostError, NoMemoryError):
                    self.finish(status)
                self.computed = False

    cdef bint is_launched(self) noexcept:
        return self.backend.launcher.running and self.backend.busy is self

    cdef int make_ready(self) except -1:
        """With the lock held: make every check that can refuse the graph, so that nothing fails later."""
        self.prepare()
        self.backend.check_free()
        if self.backend.allocated is not self:
            if self.inputs:
                raise ComputeError("the inputs have no memory: call alloc() and set them "
                                   "(another context may have been allocated since)")
            self.allocate()
        self.check_inputs()
        self.backend.adjust_threads(self.work_of_one, self.work_of_cpu)
        self.backend.uploads.send()
        self.job.sched = self.backend.sched
        self.job.only = self.backend.handles[0] if self.backend.n_handles == 1 else NULL
        self.job.graph = self.graph
        self.job.time = &self.backend.pools.time
        self.job.gate = &self.backend.pools.gate
        self.job.run_gated = self.backend.pools.run_gated
        return 0

    cdef int finish(self, int status) except -1:
        """With the lock held: what a computation leaves behind."""
        if status == OE_THREW:
            self.backend.give_up()
            raise NoMemoryError("no memory for the computation; the backend is closed")
        self.backend.check_workers()
        self.computed = True
        self.forget_inputs()
        if status == lib.GGML_STATUS_ALLOC_FAILED:
            raise NoMemoryError("no memory for the computation")
        if status != lib.GGML_STATUS_SUCCESS:
            raise ComputeError(f"ggml failed with status {status}")
        if "experts" in self.kept:
            self.kept["experts"].check()
        return 0

    # -- planning and memory, with the lock held -----------------------------------------------------------------------

    cdef int prepare(self) except -1:
        self.charge(0)
        self.backend.check_open()
        self.check_sources()
        if not self.has_outputs:
            raise ShapeError("the graph has no operation: call ctx.forward(...) with its outputs first")
        return 0

    cdef int measure_into(self, size_t *sizes) except -1:
        self.prepare()
        check_plan_memory(self.graph)
        self.backend.check_free()
        self.detach()
        self.restore_operands()
        cdef lib.ggml_backend_sched_t sched = self.backend.measuring_scheduler()
        cdef int alive = most_alive(self.ctx, self.graph)
        if alive > MAX_ALIVE:
            raise ShapeError(f"{alive} results and inputs of this graph wait to be used at once; up to {MAX_ALIVE} can")
        self.backend.busy = self
        try:
            with nogil:
                lib.ggml_backend_sched_reserve_size(sched, self.graph, sizes)
                lib.ggml_backend_sched_reset(sched)
        finally:
            self.backend.busy = None
        return self.backend.check_workers()

    cdef int plan(self, uint64_t structure) except -1:
        """Let the scheduler plan its memory for this graph, and grow it where needed."""
        cdef bool done = False
        check_plan_memory(self.graph)
        self.restore_operands()
        self.backend.start_plan()
        self.assign_devices()
        self.backend.busy = self
        try:
            with nogil:
                done = lib.ggml_backend_sched_reserve(self.backend.sched, self.graph)
        finally:
            self.backend.busy = None
        if not done:
            self.backend.renew_scheduler()
            self.backend.check_workers()
            raise NoMemoryError(f"no memory for a graph of {self.n_nodes} operations")
        self.backend.work += self.backend.more_work(self.graph)
        self.backend.planned = structure
        return self.backend.note_graph_sizes()

    cdef int allocate(self) except -1:
        cdef size_t sizes[DEVICE_SLOTS]
        cdef bool done = False
        cdef uint64_t structure
        self.prepare()
        self.backend.check_free()
        if self.has_memory():
            self.backend.allocated, self.computed = self, False
            return self.forget_inputs()
        self.detach()
        self.restore_operands()
        structure = structure_of(self.ctx, self.graph)
        if structure != self.backend.planned:
            excess = max(0, <int64_t>bytes_unshared(self.ctx) - <int64_t>self.backend.held_by_host())
            if (excess > SMALL and excess > available_bytes()) or most_alive(self.ctx, self.graph) > MAX_ALIVE:
                self.measure_into(sizes)
                self.backend.refuse_more_than_available(self.graph, sizes)
            self.plan(structure)
            self.restore_operands()
        self.backend.forget_graph()
        self.assign_devices()
        self.attached = True
        self.backend.busy = self
        try:
            with nogil:
                done = lib.ggml_backend_sched_alloc_graph(self.backend.sched, self.graph)
        finally:
            self.backend.busy = None
        if not done:
            self.detach()
            self.backend.renew_scheduler()
            raise NoMemoryError(f"no memory for a graph of {self.n_nodes} operations")
        self.backend.note_graph_sizes()
        self.backend.allocated = self
        self.memory_number, self.computed = self.backend.memory_number, False
        self.work_of_one = work_of_operation(self.graph)  # not in each step, when no cache holds the graph any more
        if self.backend.n_handles > 1:
            self.backend.uploads.collect(self.backend.sched, self.inputs)
            self.work_of_cpu = self.backend.work_of_cpu(self.graph)
        return self.forget_inputs()

    cdef bint has_memory(self) noexcept:
        """Whether addresses are right; on several devices, whether the scheduler holds the copies between them."""
        if self.backend.n_handles == 1:
            return self.attached and self.memory_number == self.backend.memory_number
        return self.attached and self.backend.allocated is self

    cdef int assign_devices(self) except -1:
        """Tell the scheduler, which was reset, where to put what it would put elsewhere: operations, and inputs."""
        cdef lib.ggml_backend_sched_t sched = self.backend.sched
        self.backend.pin_operations(sched, self.graph)
        if self.backend.n_handles == 1:
            return 0
        self.backend.busy = self
        try:
            self.backend.uploads.look(sched, self.graph)
        finally:
            self.backend.busy = None
            lib.ggml_backend_sched_reset(sched)
            self.restore_operands()
        self.backend.pin_operations(sched, self.graph)
        return self.backend.uploads.assign(sched, self.graph, self.backend.handles[self.backend.n_handles - 1])

    cdef int detach(self) except -1:
        """Forget where the scheduler's tensors lie; those with memory of their own keep it."""
        cdef lib.ggml_tensor *t
        if not self.attached:
            return 0
        if self.backend.allocated is self:
            self.backend.forget_graph()
        t = lib.ggml_get_first_tensor(self.ctx)
        while t != NULL:
            if self.owns(root_of(t)) and <size_t>root_of(t) not in self.placed:
                t.data = NULL
                t.buffer = NULL
            t = lib.ggml_get_next_tensor(self.ctx, t)
        self.attached = self.computed = False
        return 0

    cdef int restore_operands(self) except -1:
        """Put the original operands back: planning for several devices replaces some by copies."""
        if self.backend.n_handles == 1:
            return 0
        self.operands = self.operands or SavedOperands()
        return self.operands.restore(self.ctx, self.count())

    cdef int forget_inputs(self) except -1:
        # An input that no operation reads gets no memory, and needs no values.
        self.unwritten = {<size_t>(<Tensor>t).ptr for t in self.inputs if (<Tensor>t).ptr.data != NULL}
        return 0

    cdef int check_inputs(self) except -1:
        if self.unwritten:
            names = [t.name or describe(t) for t in self.inputs if <size_t>(<Tensor>t).ptr in self.unwritten]
            raise ShapeError(f"inputs not set since the last compute: {', '.join(names)}")
        if self.limits is None:
            self.limits = active_limits(self)
        for index, rows in self.limits.values():
            check_rows(<Tensor>index, rows)
        return 0
