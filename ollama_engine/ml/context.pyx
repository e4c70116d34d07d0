"""Context: builds one graph, then allocates and computes it, as often as wanted with new inputs.

    with backend.context() as ctx:                     # or Context(backend)
        x = ctx.input("f32", (4, 2))                   # memory comes with alloc(), values with set()
        y = ops.rms_norm(x, 1e-5) * ctx.from_floats([1, 2, 3, 4])
        ctx.forward(y)                                 # y is an output
        ctx.alloc()
        x.set(values)
        ctx.compute()
        print(y.numpy())

Inputs must be written before every compute, since the scheduler reuses their memory once they are read.
"""

import numpy as np

from libc.stdint cimport int32_t, int64_t, uintptr_t
from libcpp cimport bool

from ollama_engine.errors import ClosedError, ComputeError, NoMemoryError, ShapeError
from ollama_engine.ml.hostmem import available_bytes

from ollama_engine.ml cimport libggml as lib
from ollama_engine.ml.backend cimport Backend
from ollama_engine.ml.tensor cimport Tensor, describe, shape_to_ne, type_of, wrap

cdef size_t CHUNK = 64 * 1024


cdef class _Chunk:
    """One buffer that constants are placed in, freed with its context."""
    cdef lib.ggml_backend_buffer_t buffer

    def __dealloc__(self):
        if self.buffer != NULL:
            lib.ggml_backend_buffer_free(self.buffer)


cdef class Context(Graph):
    """The tensors of one graph on one backend. `max_nodes` bounds them; by default the backend's bound."""

    def __init__(self, Backend backend not None, *, max_nodes=None):
        cdef lib.ggml_init_params params
        if self.ctx != NULL:
            raise ShapeError("a Context is initialised once")
        backend.check_open()
        self.max_nodes = backend.max_nodes if max_nodes is None else max_nodes
        if not 8 <= self.max_nodes <= backend.max_nodes:
            raise ShapeError(f"max_nodes is 8 to {backend.max_nodes} (the backend's bound), got {max_nodes}")
        self.is_graph = True
        self.backend = backend
        self.index_limits = {}
        self.stored = set()
        self.sources = set()
        self.inputs = []
        self.unwritten = set()
        self.chunks = []
        params.mem_size = (lib.ggml_tensor_overhead() * self.max_nodes
                           + lib.ggml_graph_overhead_custom(self.max_nodes, False) + 1024)
        params.mem_buffer = NULL
        params.no_alloc = True
        self.ctx = lib.ggml_init(params)
        if self.ctx == NULL:
            raise NoMemoryError(f"no memory for a graph of {self.max_nodes} nodes")
        self.graph = lib.ggml_new_graph_custom(self.ctx, self.max_nodes, False)
        backend.members.add(self)

    cdef int charge(self, int tensors) except -1:
        if self.ctx == NULL:
            raise ClosedError("this Context is closed; its tensors are gone")
        if self.n_tensors + len(self.stored) + tensors > self.max_nodes:
            raise ShapeError(f"the graph has more than {self.max_nodes} tensors; give Context a larger max_nodes")
        self.n_tensors += tensors
        return 0

    cdef int mark_written(self, lib.ggml_tensor *ptr) except -1:
        self.unwritten.discard(<uintptr_t>ptr)
        return 0

    # -- making tensors ------------------------------------------------------------------------------------------------

    cdef Tensor new(self, str dtype, object shape):
        cdef int64_t ne[4]
        cdef lib.ggml_type kind = type_of(dtype)
        shape_to_ne(shape, kind, ne)
        self.charge(1)
        return wrap(self, lib.ggml_new_tensor(self.ctx, kind, 4, ne))

    def input(self, str dtype, shape, name=None):
        """A tensor that is written before each compute; memory comes with `alloc()`."""
        cdef Tensor t = self.new(dtype, shape)
        lib.ggml_set_input(t.ptr)
        if name is not None:
            t.named(name)
        self.inputs.append(t)
        return t

    def empty(self, str dtype, shape):
        """A constant with memory at once and undefined values. Raises NoMemoryError."""
        cdef Tensor t = self.new(dtype, shape)
        self.place(t)
        return t

    def zeros(self, str dtype, shape):
        """A constant of zeros (of zero bytes for quantized types). Raises NoMemoryError."""
        t = self.empty(dtype, shape)
        t.set(np.zeros(t.nbytes, dtype=np.uint8).view(_numpy_type(dtype)))
        return t

    def from_floats(self, values, shape=None, str dtype="f32"):
        """A constant from numbers: any array or sequence of floats.

        `shape` in ggml's order; None takes it from the array. Raises ShapeError when the count differs.
        """
        if dtype not in ("f32", "f16"):
            raise ShapeError(f"from_floats makes f32 or f16, got {dtype!r}")
        return self._from_array(_as_array(values, "biuf", "floats"), _numpy_type(dtype), shape, dtype)

    def from_ints(self, values, shape=None, str dtype="i32"):
        """A constant from whole numbers, "i32" or "i64". Raises ShapeError on another count or a number too large."""
        if dtype not in ("i32", "i64"):
            raise ShapeError(f"from_ints makes i32 or i64, got {dtype!r}")
        array = _as_array(values, "iu", "whole numbers")
        kind = np.iinfo(_numpy_type(dtype))
        if array.size and not (kind.min <= array.min() and array.max() <= kind.max):
            raise ShapeError(f"{dtype} holds {kind.min} to {kind.max}, got {array.min()} to {array.max()}")
        return self._from_array(array, _numpy_type(dtype), shape, dtype)

    def _from_array(self, array, kind, shape, dtype):
        if shape is None:
            shape = tuple(reversed(array.shape)) if array.ndim else (1,)
        cdef int64_t ne[4]
        shape_to_ne(shape, type_of(dtype), ne)
        count = ne[0] * ne[1] * ne[2] * ne[3]
        if array.size != count:
            raise ShapeError(f"shape {shape} takes {count} values, got {array.size}")
        t = self.empty(dtype, shape)
        t.set(array.astype(kind, copy=False))
        return t

    cdef int place(self, Tensor t) except -1:
        """Give a constant memory: from the current chunk, or from a new one."""
        cdef lib.ggml_backend_buffer_type_t kind = self.backend.cpu_buffer_type()
        cdef size_t align = lib.ggml_backend_buft_get_alignment(kind)
        cdef size_t size = (lib.ggml_nbytes(t.ptr) + align - 1) // align * align
        cdef _Chunk chunk
        if not self.chunks or self.chunk_used + size > self.chunk_size:
            if size > available_bytes():
                raise NoMemoryError(f"{describe(t)} needs {size} bytes; {available_bytes()} are available")
            chunk = _Chunk.__new__(_Chunk)
            self.chunk_size = max(size, CHUNK)
            chunk.buffer = lib.ggml_backend_buft_alloc_buffer(kind, self.chunk_size)
            if chunk.buffer == NULL:
                self.chunk_size = 0
                raise NoMemoryError(f"no memory for {describe(t)}: {size} bytes")
            self.chunks.append(chunk)
            self.chunk_used = 0
        chunk = <_Chunk>self.chunks[-1]
        base = <char *>lib.ggml_backend_buffer_get_base(chunk.buffer)
        lib.ggml_backend_tensor_alloc(chunk.buffer, t.ptr, base + self.chunk_used)
        self.chunk_used += size
        return 0

    # -- the graph -----------------------------------------------------------------------------------------------------

    def forward(self, *outputs):
        """Add tensors and all they depend on to the graph, as outputs: their values survive the computation."""
        for t in outputs:
            self._own(t)
            lib.ggml_set_output((<Tensor>t).ptr)
            lib.ggml_build_forward_expand(self.graph, (<Tensor>t).ptr)
            self.has_outputs = True

    def expand(self, *tensors):
        """Add tensors to the graph for their effect (a cache write), in this order."""
        for t in tensors:
            self._own(t)
            lib.ggml_build_forward_expand(self.graph, (<Tensor>t).ptr)
            self.has_outputs = True

    def _own(self, Tensor t not None):
        self.charge(0)
        if t.owner is not self:
            raise ShapeError("this tensor belongs to another context, to the weights or to a cache")

    @property
    def n_nodes(self):
        """Operations in the graph."""
        self.charge(0)
        return lib.ggml_graph_n_nodes(self.graph)

    def measure(self):
        """Bytes that this graph's intermediate results need, {device name: bytes}; allocates nothing."""
        cdef size_t sizes[17]
        with self.backend.lock:
            self.prepare()
            lib.ggml_backend_sched_reset(self.backend.sched)
            self.backend.allocated = None
            with nogil:
                lib.ggml_backend_sched_reserve_size(self.backend.sched, self.graph, sizes)
            lib.ggml_backend_sched_reset(self.backend.sched)
            return {d.name: sizes[i] for i, d in enumerate(self.backend.devices)}

    def reserve(self):
        """Make sure that a graph of this shape fits, by growing the backend's memory now. Raises NoMemoryError."""
        cdef bool done = False
        needed = self.measure()
        with self.backend.lock:
            self.prepare()
            self._refuse_more_than_available(needed)
            with nogil:
                done = lib.ggml_backend_sched_reserve(self.backend.sched, self.graph)
            if not done:
                raise NoMemoryError(f"no memory for a graph of {self.n_nodes} operations: {_sizes(needed)}")

    def _refuse_more_than_available(self, needed):
        held = self.backend.graph_bytes()
        host = self.backend.devices[-1].name
        if needed[host] - held[host] > available_bytes():
            raise NoMemoryError(f"a graph of {self.n_nodes} operations needs {_sizes(needed)}; "
                                f"{available_bytes() >> 20} MiB of memory are available")

    def alloc(self):
        """Give every tensor of the graph memory. What another context had allocated on this backend is given up."""
        cdef bool done = False
        with self.backend.lock:
            self.prepare()
            lib.ggml_backend_sched_reset(self.backend.sched)
            self.backend.allocated = None
            with nogil:
                done = lib.ggml_backend_sched_alloc_graph(self.backend.sched, self.graph)
            if not done:
                lib.ggml_backend_sched_reset(self.backend.sched)
                raise NoMemoryError(f"no memory for a graph of {self.n_nodes} operations")
            self.backend.allocated = self
            self._forget_inputs()

    def _forget_inputs(self):
        # An input that no operation reads gets no memory, and needs no values.
        self.unwritten = {<uintptr_t>(<Tensor>t).ptr for t in self.inputs if (<Tensor>t).ptr.data != NULL}

    def compute(self):
        """Run the graph with the GIL released. Raises ShapeError for unset inputs or row numbers out of range,
        ComputeError or NoMemoryError when the backend fails.
        """
        cdef lib.ggml_status status
        with self.backend.lock:
            self.prepare()
            if self.backend.allocated is not self:
                if self.inputs:
                    raise ComputeError("the inputs have no memory: call alloc() and set them "
                                       "(another context may have been allocated since)")
                self.alloc()
            self._check_inputs()
            with nogil:
                status = lib.ggml_backend_sched_graph_compute(self.backend.sched, self.graph)
            self._forget_inputs()
            if status == lib.GGML_STATUS_ALLOC_FAILED:
                raise NoMemoryError("no memory for the computation")
            if status != lib.GGML_STATUS_SUCCESS:
                raise ComputeError(f"ggml failed with status {<int>status}")

    cdef int prepare(self) except -1:
        self.charge(0)
        self.backend.check_open()
        self.check_sources()
        if not self.has_outputs:
            raise ShapeError("the graph is empty: call ctx.forward(...) with its outputs first")
        return 0

    def _check_inputs(self):
        if self.unwritten:
            names = [t.name or describe(t) for t in self.inputs if <uintptr_t>(<Tensor>t).ptr in self.unwritten]
            raise ShapeError(f"inputs not set since the last compute: {', '.join(names)}")
        for index, rows in self.index_limits.values():
            _check_rows(<Tensor>index, rows)

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def close(self):
        """Free the graph and its constants. Safe to call twice."""
        if self.backend is None:
            return
        with self.backend.lock:
            if self.backend.allocated is self:
                self.backend.allocated = None
                if self.backend.sched != NULL:
                    lib.ggml_backend_sched_reset(self.backend.sched)
            self._free()

    def _free(self):
        if self.ctx != NULL:
            lib.ggml_free(self.ctx)
            self.ctx = NULL
        self.chunks = []
        self.inputs = []
        self.index_limits = {}
        self.stored = set()
        self.sources = set()

    def __dealloc__(self):
        # Backend.allocated holds a reference, so the scheduler does not know this graph any more.
        if self.ctx != NULL:
            lib.ggml_free(self.ctx)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef int _check_rows(Tensor index, int64_t rows) except -1:
    """Every value of an index tensor that holds memory must be a row number."""
    cdef lib.ggml_tensor *t = index.ptr
    cdef int64_t n = lib.ggml_nelements(t)
    cdef int64_t i
    cdef int64_t value = 0
    cdef int32_t *narrow = <int32_t *>t.data
    cdef int64_t *wide = <int64_t *>t.data
    if t.data == NULL or t.buffer == NULL:
        return 0  # not part of the graph that is computed
    if not lib.ggml_backend_buffer_is_host(t.buffer):
        values = index.numpy()
        if values.size and (values.min() < 0 or values.max() >= rows):
            raise ShapeError(f"row numbers are 0 to {rows - 1}, got {values.min()} to {values.max()}")
        return 0
    for i in range(n):
        value = wide[i] if t.type == lib.GGML_TYPE_I64 else narrow[i]
        if not 0 <= value < rows:
            raise ShapeError(f"row numbers are 0 to {rows - 1}, got {value} at place {i}")
    return 0


def _numpy_type(dtype):
    return {"f32": np.float32, "f16": np.float16, "i32": np.int32, "i64": np.int64,
            "i8": np.int8, "i16": np.int16, "f64": np.float64}.get(dtype, np.uint8)


def _as_array(values, kinds, what):
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise ShapeError(f"expected {what}, got something that is no array: {error}") from None
    if array.dtype.kind not in kinds and not (array.size == 0 and array.dtype.kind == "f"):
        raise ShapeError(f"expected {what}, got an array of {array.dtype}")
    return array


def _sizes(needed):
    return ", ".join(f"{name} {size >> 20} MiB" for name, size in needed.items())
