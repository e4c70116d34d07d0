"""Context: builds one graph, then allocates and computes it, as often as wanted with new inputs.

    with Context(backend) as ctx:
        x = ctx.input("f32", (4, 2))                   # memory comes with alloc(), values with set()
        y = ops.rms_norm(x, 1e-5) * ctx.from_floats([1, 2, 3, 4])
        ctx.forward(y)                                 # y is an output
        ctx.alloc()
        x.set(values)
        ctx.compute()
        print(y.numpy())

Write the inputs before every compute: the scheduler reuses their memory once they are read. One context at a time has
memory on a backend: allocating another context takes that memory away, and the outputs with it.
"""

from contextlib import nullcontext

import numpy as np

from cpython.pythread cimport PyThread_get_thread_ident
from libc.stddef cimport size_t
from libc.stdint cimport int64_t
from libc.string cimport memset

from ollama_engine.errors import ClosedError, NoMemoryError, ShapeError
from ollama_engine.ml.device.hostmem import available_bytes

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.backend cimport Backend
from ollama_engine.ml.graph.computation cimport Computation
from ollama_engine.ml.graph.graph_walk cimport expand_graph
from ollama_engine.ml.graph.tensor cimport Tensor, root_of, wrap
from ollama_engine.ml.graph.types cimport FREE_THREADED, kind_of, shape_to_ne, type_of, whole
from ollama_engine.ml.graph.window cimport Buffer, Window, new_buffer, window_over

cdef object NOTHING = nullcontext()
cdef size_t CHUNK = 64 * 1024
# Asking the system for its available memory takes 100 us, so the answer is reused until a 64th of it is taken.
cdef size_t SHARE = 64


cdef class Context(Computation):
    """The tensors of one graph on one backend. `max_nodes` bounds them; by default the backend's bound."""

    def __init__(self, Backend backend not None, *, max_nodes=None):
        cdef int64_t nodes = backend.max_nodes if max_nodes is None else whole(max_nodes)
        if self.backend is not None:
            raise ShapeError("a Context is initialised once")
        if not 8 <= nodes <= backend.max_nodes:
            raise ShapeError(f"max_nodes is 8 to {backend.max_nodes} (the backend's bound), got {nodes}")
        self.builder = PyThread_get_thread_ident()
        self.chunks = []
        self.begin(backend, nodes)

    # -- making tensors ------------------------------------------------------------------------------------------------

    cdef int charge(self, int tensors) except -1:
        if FREE_THREADED and tensors:
            self.check_builder()
        return Computation.charge(self, tensors)

    cdef int check_builder(self) except -1:
        """Without Python's lock, nothing else keeps two threads from changing ggml's lists at once."""
        if FREE_THREADED and self.builder != PyThread_get_thread_ident():
            raise ShapeError("this Python has no lock, so a Context is built by the thread that made it; make another")
        return 0

    cdef Tensor new(self, str dtype, object shape):
        cdef int64_t ne[4]
        cdef lib.ggml_type kind = type_of(dtype)
        shape_to_ne(shape, kind, ne)
        self.charge(1)
        return wrap(self, lib.ggml_new_tensor(self.ctx, kind, 4, ne))

    def input(self, str dtype not None, shape, str name=None):
        """A tensor that is written before each compute; memory comes with `alloc()`."""
        cdef Tensor t = self.new(dtype, shape)
        lib.ggml_set_input(t.ptr)
        if name is not None:
            t.named(name)
        self.inputs.append(t)
        return t

    def empty(self, str dtype not None, shape):
        """A constant with memory at once and undefined values. Raises NoMemoryError."""
        return self.zeros(dtype, shape)  # written, so that the system gives the memory now and not at first use

    def zeros(self, str dtype not None, shape):
        """A constant of zeros (of zero bytes for quantized types). Raises NoMemoryError."""
        cdef Tensor t = self.new(dtype, shape)
        self.place(t, True)
        return t

    def from_floats(self, values, shape=None, str dtype="f32"):
        """A constant from any array or sequence of floats. An array of the constant's type is copied once, unconverted.

        `shape` in ggml's order; None takes it from the array. Raises ShapeError when the count differs, or when a
        number is too large for the type.
        """
        if dtype not in ("f32", "f16"):
            raise ShapeError(f"from_floats makes f32 or f16, got {dtype!r}")
        kind = kind_of(type_of(dtype))
        array = _as_array(values, "biuf", "floats")
        if array.dtype is not kind:
            try:
                with np.errstate(over="raise"):
                    array = array.astype(kind, copy=False)
            except FloatingPointError:
                raise ShapeError(f"from_floats: a number is too large for {dtype}") from None
        return self.constant(array, shape, dtype)

    def shared_floats(self, values):
        """A constant from a float32 array that does not change, and the same one each time that it is asked for.

        Each constant of a graph is copied to devices with every step.
        """
        key = ("floats", id(values))
        kept = self.kept.get(key)
        if kept is None:
            kept = self.kept[key] = (self.from_floats(values), values)  # an id lasts as long as its array
        return kept[0]

    def from_ints(self, values, shape=None, str dtype="i32"):
        """A constant from whole numbers, "i32" or "i64"; otherwise as from_floats."""
        if dtype not in ("i32", "i64"):
            raise ShapeError(f"from_ints makes i32 or i64, got {dtype!r}")
        kind = kind_of(type_of(dtype))
        array = _as_array(values, "iu", "whole numbers")
        if array.dtype is not kind:
            limits = np.iinfo(kind)
            if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
                raise ShapeError(f"{dtype} holds {limits.min} to {limits.max}, got {array.min()} to {array.max()}")
            array = array.astype(kind, copy=False)
        return self.constant(array, shape, dtype)

    cdef Tensor constant(self, object array, object shape, str dtype):
        """A constant from an array that already has the constant's element type."""
        if shape is None:
            shape = array.shape[::-1] or (1,)
        cdef int64_t ne[4]
        cdef lib.ggml_type kind = type_of(dtype)
        shape_to_ne(shape, kind, ne)
        cdef int64_t count = ne[0] * ne[1] * ne[2] * ne[3]
        if array.size != count:
            raise ShapeError(f"shape {[ne[i] for i in range(4)]} takes {count} values, got {array.size}")
        self.charge(1)
        cdef Tensor t = wrap(self, lib.ggml_new_tensor(self.ctx, kind, 4, ne))
        self.place(t, False)
        t.set(array)
        return t

    @property
    def description_bytes(self):
        """Host memory that the descriptions of this graph's tensors take, in bytes."""
        self.charge(0)
        return lib.ggml_used_mem(self.ctx)

    @property
    def constant_bytes(self):
        """Host memory that this graph's constants take, in bytes."""
        cdef Buffer chunk
        cdef size_t nbytes = 0
        for chunk in self.chunks:
            nbytes += lib.ggml_backend_buffer_get_size(chunk.buffer)
        return nbytes

    cdef int place(self, Tensor t, bint zeroed) except -1:
        """Give a constant memory: from the current chunk, or from a new one."""
        cdef lib.ggml_backend_buffer_type_t kind = self.backend.cpu_memory
        cdef size_t align = lib.ggml_backend_buft_get_alignment(kind)
        cdef size_t size = (lib.ggml_nbytes(t.ptr) + align - 1) // align * align
        cdef Buffer chunk
        if not self.chunks or self.chunk_used + size > self.chunk_size:
            self.add_chunk(kind, max(size, CHUNK))
        chunk = <Buffer>self.chunks[-1]
        address = chunk.base() + self.chunk_used
        if zeroed:
            memset(address, 0, size)
        lib.ggml_backend_tensor_alloc(chunk.buffer, t.ptr, address)
        self.chunk_used += size
        self.placed.add(<size_t>t.ptr)
        return 0

    cdef int add_chunk(self, lib.ggml_backend_buffer_type_t kind, size_t size) except -1:
        cdef size_t available
        if size > self.backend.constant_room:
            available = available_bytes()
            if size > available:
                raise NoMemoryError(f"{size} bytes are needed; {available} are available")
            self.backend.constant_room = max(size, available // SHARE)
        cdef Buffer chunk = new_buffer(lib.ggml_backend_buft_alloc_buffer(kind, size))
        if chunk is None:
            raise NoMemoryError(f"no memory for a constant of {size} bytes")
        self.charge(0)  # finding out what is available may have let another thread close this context
        self.backend.constant_room -= min(size, self.backend.constant_room)
        self.chunks.append(chunk)
        self.chunk_size = size
        self.chunk_used = 0
        return 0

    # -- the graph -----------------------------------------------------------------------------------------------------

    def forward(self, *outputs):
        """Add tensors and all they depend on to the graph, as outputs: their values survive the computation."""
        cdef lib.ggml_tensor *ptr
        with self.lock if FREE_THREADED else NOTHING:
            for t in outputs:
                self.own(t)
                ptr = (<Tensor>t).ptr
                lib.ggml_set_output(ptr)
                if self.owns(root_of(ptr)):
                    lib.ggml_set_output(root_of(ptr))  # a view's values are those of its source
                self.grow(ptr)

    def expand(self, *tensors):
        """Add tensors to the graph for their effect (a cache write), in this order."""
        with self.lock if FREE_THREADED else NOTHING:
            for t in tensors:
                self.own(t)
                self.grow((<Tensor>t).ptr)

    cdef int own(self, Tensor t) except -1:
        self.check_builder()
        self.charge(0)
        if t is None or t.owner is not self:
            raise ShapeError("forward and expand take tensors of this context; got None, or a tensor of the weights, "
                             "a cache or another context")
        self.settle()
        self.charge(0)
        return 0

    cdef int grow(self, lib.ggml_tensor *output) except -1:
        expand_graph(self.ctx, self.graph, output)
        self.has_outputs = lib.ggml_graph_n_nodes(self.graph) > 0
        self.limits = None
        return 0

    # -- reading results without a copy --------------------------------------------------------------------------------

    cdef Window window(self, Tensor t):
        self.backend.check_open()
        with self.lock:
            self.charge(0)
            self.backend.check_idle()
            self.check_access(t, False)
            if (not self.owns(root_of(t.ptr)) or <size_t>root_of(t.ptr) in self.placed or kind_of(t.ptr.type) is None
                    or not lib.ggml_backend_buffer_is_host(t.ptr.buffer)):
                return None
            return window_over(self.backend.scheduler, t.ptr.data, lib.ggml_nbytes(t.ptr))

    def read_rows(self, Tensor t not None, first, out):
        """Copy rows of an output, f32 [n, rows], from row `first` on into `out`, a writable float32 [k, n] array.

        Of an output on another device nothing else is fetched. Raises ShapeError for rows that there are not, and as
        `Tensor.numpy`.
        """
        cdef int64_t begin = whole(first)
        cdef float[:, ::1] rows = None
        try:
            rows = out
        except (TypeError, ValueError, BufferError):
            rows = None
        if rows is None:
            raise ShapeError(f"read_rows: expected a writable float32 [rows, n] array, got {out!r:.80}")
        self.backend.check_open()
        with self.lock:
            self.charge(0)
            self.backend.check_idle()
            if t.owner is not self or t.ptr.type != lib.GGML_TYPE_F32 or not lib.ggml_is_contiguous(t.ptr):
                raise ShapeError("read_rows reads a contiguous f32 output of this context")
            self.check_access(t, False)
            if rows.shape[1] != t.ptr.ne[0] or not 0 <= begin <= lib.ggml_nrows(t.ptr) - rows.shape[0]:
                raise ShapeError(f"rows {begin} to {begin + rows.shape[0]} with {rows.shape[1]} values are none of "
                                 f"{lib.ggml_nrows(t.ptr)} with {t.ptr.ne[0]}")
            if rows.shape[0]:
                with nogil:
                    lib.ggml_backend_tensor_get(t.ptr, &rows[0, 0], begin * t.ptr.nb[1],
                                                <size_t>rows.shape[0] * t.ptr.nb[1])
            self.exchanged(t.ptr, False)

    # -- lifetime ------------------------------------------------------------------------------------------------------

    def close(self):
        """Free the graph and its constants. Safe to call twice."""
        if not self.is_open:
            return
        if self.backend.closed:
            self.drop()
            return
        try:
            self.backend.check_open()
        except ClosedError:  # in a forked child, where the lock may be held for ever
            self.is_open = False
            return
        with self.lock:
            self.abandon()
            if self.backend.busy is self:
                self.backend.check_idle()
            if self.backend.allocated is self:
                self.backend.forget_graph()
            self.drop()

    cdef int drop(self) except -1:
        self.is_open = False
        if FREE_THREADED and self.builder != PyThread_get_thread_ident():
            return 0  # its thread may be making a tensor: what it holds goes with the last reference
        self.release()
        self.chunks = []
        self.inputs = []
        self.index_limits = []
        self.limits = None
        self.stored = {}
        self.rounded = {}
        self.written = set()
        self.kept = {}
        self.sources = {}
        self.placed = set()
        self.unwritten = set()
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef object _as_array(object values, str kinds, str what):
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, OverflowError) as error:
        raise ShapeError(f"expected {what}, got something that is no array: {error}") from None
    if array.dtype.kind not in kinds and not (array.size == 0 and array.dtype.kind == "f"):
        raise ShapeError(f"expected {what}, got an array of {array.dtype}")
    return array
