"""Tensor: a shape, an element type and a place in memory; Owner and Graph: the bases of what owns tensors.

Shapes are in ggml's order, fastest dimension first, always of rank 4 inside ggml; `Tensor.shape` drops trailing ones.
Weights and cache storage belong to a `Storage`; the nodes of a computation belong to a `Graph`. A tensor keeps its
owner alive, and a closed owner makes its tensors raise ClosedError instead of reading freed memory.

Threads: no Python code may run between the check that an owner is open and the call of ggml that relies on it, since
another thread, a finaliser or an argument's own method could close the owner there. So arguments are converted first.
"""

import numpy as np

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from ollama_engine.errors import ClosedError, NoMemoryError, ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.types cimport FREE_THREADED, axis_of, check_kind, dtype_name, kind_of, on_host
from ollama_engine.ml.graph.window cimport Window, mapping_of

# Bytes from which a copy releases the GIL. Releasing it costs as much as copying a few kilobytes.
cdef size_t LARGE = 64 * 1024


cdef lib.ggml_tensor *root_of(lib.ggml_tensor *ptr) noexcept nogil:
    """The tensor that a view looks into; the tensor itself where it is no view."""
    return ptr if ptr.view_src == NULL else ptr.view_src


cdef class Owner:
    """Owns tensors. `closed` turns True once, and then every use of its tensors raises."""

    cdef int start(self, size_t size) except -1:
        """Allocate memory for the descriptions of tensors here: ggml ends the process where its own malloc fails."""
        cdef lib.ggml_init_params params
        self.arena = <char *>malloc(size)
        if self.arena == NULL:
            raise NoMemoryError(f"no memory for the descriptions of tensors: {size} bytes")
        self.arena_size = size
        params.mem_size = size
        params.mem_buffer = self.arena
        params.no_alloc = True
        self.ctx = lib.ggml_init(params)
        return 0

    cdef void release(self) noexcept:
        if self.ctx != NULL:
            lib.ggml_free(self.ctx)
            self.ctx = NULL
        free(self.arena)
        self.arena = NULL

    def __dealloc__(self):
        self.release()

    @property
    def closed(self):
        return not self.is_open

    cdef int charge(self, int tensors) except -1:
        if not self.is_open:
            raise ClosedError(f"this {type(self).__name__} is closed; its tensors are gone")
        return 0

    cdef int busy(self) except -1:
        """Whether reading and writing values needs `lock`."""
        return 0

    cdef int check_access(self, Tensor t, bint writing) except -1:
        """Refuse to read or write a tensor whose memory does not hold its values."""
        raise ShapeError(f"{describe(t)} has no memory")

    cdef int exchanged(self, lib.ggml_tensor *ptr, bint writing) except -1:
        return 0

    cdef char *staged(self, lib.ggml_tensor *ptr) noexcept nogil:
        return NULL

    cdef Window window(self, Tensor t):
        """The tensor's own memory, or None where its values have to be copied."""
        return None


cdef class Graph(Owner):
    """Base of `Context`: tensors that are the nodes of one computation."""

    cdef bint owns(self, lib.ggml_tensor *ptr) noexcept:
        return self.arena <= <char *>ptr < self.arena + self.arena_size

    cdef int use_stored(self, Tensor t) except -1:
        """Count a weight or cache tensor as a leaf of this graph with room for a result, and keep its owner."""
        if t.owner.lock is not self.lock:
            raise ShapeError(f"{describe(t)} belongs to another Backend than the graph")
        if t.ptr.data == NULL:
            raise ShapeError(f"{describe(t)} has no memory yet; allocate its Storage first")
        if <size_t>t.ptr not in self.stored:
            self.charge(5)  # one for this leaf, and the result's as in graph_of
            self.stored[<size_t>t.ptr] = t
        self.sources[<size_t><void *>t.owner] = t.owner
        return 0

    cdef int check_sources(self) except -1:
        for owner in self.sources.values():
            (<Owner>owner).charge(0)
        return 0

    cdef int check_target(self, Tensor t, str op) except -1:
        """Refuse a result that would be written into read-only memory, such as a mapped file."""
        target = self.stored.get(<size_t>root_of(t.ptr))
        if target is not None and (<Tensor>target).owner.read_only:
            raise ShapeError(f"{op}: {describe(t)} lies in a mapped file and cannot be changed")
        self.rounded.clear()
        self.written.add(<size_t>root_of(t.ptr))


cdef Tensor wrap(Owner owner, lib.ggml_tensor *ptr):
    cdef Tensor t = Tensor.__new__(Tensor)
    t.owner = owner
    t.ptr = ptr
    return t


cdef str describe(Tensor t):
    return f"{dtype_name(t.ptr.type)}{list(t.shape)}"


cdef int alive(Tensor t) except -1:
    if t is None:
        raise ShapeError("expected a Tensor, got None")
    if t.owner is None or not t.owner.is_open:
        raise ClosedError("this tensor's memory is gone: its Context, Weights or cache was closed")
    return 0


cdef Graph graph_of(Tensor a, Tensor b=None, Tensor c=None, bint product=False):
    """The graph that the operands belong to, with room for the result; weights and cache belong to none.

    With `product`, `a` may be a repacked weight: only products can read those.
    """
    alive(a)
    cdef Graph graph = <Graph>a.owner if a.owner.is_graph else None
    graph = _join(_join(graph, b), c)
    if graph is None:
        raise ShapeError("no operand belongs to a context (weights and cache do not); "
                         "start from ctx.input(...), or bring one in with ops.view(..., ctx=ctx)")
    graph.charge(4)
    _use(graph, a, product)
    _use(graph, b, False)
    _use(graph, c, False)
    return graph


cdef int _use(Graph graph, Tensor t, bint product) except -1:
    if t is None or t.owner.is_graph:
        return 0
    if t.owner.is_repacked and not product:
        raise ShapeError(f"{describe(t)} is repacked: only mul_mat and mul_mat_id can read it")
    return graph.use_stored(t)


cdef Graph _join(Graph graph, Tensor t):
    if t is None:
        return graph
    alive(t)
    if not t.owner.is_graph:
        return graph
    if graph is not None and graph is not t.owner:
        raise ShapeError("the operands belong to two different contexts; build one graph in one context")
    return <Graph>t.owner


cdef class Tensor:
    """One array of a graph, a weight, or a piece of a cache; made by `Context`, `Weights`, `Storage` and `ops` only."""

    def __init__(self):
        raise TypeError("tensors are made by a Context (ctx.input, ctx.from_floats ...), not by Tensor()")

    @property
    def shape(self):
        """Dimensions in ggml's order (fastest first), trailing ones dropped."""
        alive(self)
        return tuple([self.ptr.ne[i] for i in range(lib.ggml_n_dims(self.ptr))])

    def dim(self, axis):
        """Size of one dimension, 0 to 3; 1 beyond the rank."""
        cdef int n = axis_of(axis)
        alive(self)
        return self.ptr.ne[n]

    def stride(self, axis):
        """Bytes between two elements along one dimension (between two blocks for axis 0)."""
        cdef int n = axis_of(axis)
        alive(self)
        return self.ptr.nb[n]

    @property
    def dtype(self):
        """ggml's name of the element type: "f32", "f16", "q4_K" ..."""
        alive(self)
        return dtype_name(self.ptr.type)

    @property
    def nbytes(self):
        """Bytes from the first element to the end of the last."""
        alive(self)
        return lib.ggml_nbytes(self.ptr)

    @property
    def contiguous(self):
        """Whether the elements lie side by side in order."""
        alive(self)
        return lib.ggml_is_contiguous(self.ptr)

    @property
    def name(self):
        """The name given with `named`, or what ggml calls a node of the graph."""
        alive(self)
        return (<bytes>self.ptr.name).decode("utf-8", "replace")

    def named(self, str name not None):
        """Give the tensor a name (at most 63 bytes are kept) and return it."""
        alive(self)
        text = name.encode()[: lib.GGML_MAX_NAME - 1]
        lib.ggml_set_name(self.ptr, text)
        return self

    def set(self, data):
        """Copy `data` (any array of the same number of bytes and element type) into the tensor.

        Only tensors that hold memory can be written: inputs of an allocated graph, constants, stored tensors.
        Quantized types and bf16 take their raw bytes. Raises ShapeError where type or size differ.
        """
        alive(self)
        self.exchange_buffer(_payload(self, data), True)

    def set_bytes(self, data):
        """Copy the tensor's memory as it lies in a file: any buffer of exactly `nbytes` bytes, whatever the type.

        On repacked storage this converts to the repacked layout.
        """
        alive(self)
        self.exchange_buffer(data, True)

    def numpy(self):
        """A copy of the values as a numpy array in numpy's order (shape reversed); raw bytes for quantized types.

        The tensor must hold its values: an output of a computed graph, a constant, or a stored tensor.
        """
        alive(self)
        kind = kind_of(self.ptr.type)
        if self.ptr.data == NULL or not lib.ggml_is_contiguous(self.ptr):
            self.exchange(NULL, 0, False)  # raises the error that fits
        if kind is None:
            out = np.empty(lib.ggml_nbytes(self.ptr), dtype=np.uint8)
        else:
            out = np.empty(self.shape[::-1], dtype=kind)
        self.exchange_buffer(out, False)
        return out

    def mapped(self):
        """Look at the values without copying them: `with tensor.mapped() as array:` gives a read-only numpy array.

        The array is a view for outputs and inputs of a graph in host memory (strided where they are not contiguous),
        and a copy as from `numpy` for all else. Inside the block, calls that would change the memory raise
        ComputeError: allocating or computing any context of the backend, and setting inputs. Closing is allowed; the
        memory is freed later. An array that outlives the block keeps the memory alive, but its values are undefined.
        Raises as `numpy`, and ComputeError while the backend computes.
        """
        alive(self)
        window = self.owner.window(self)
        return mapping_of(self.numpy() if window is None else _array_over(self, window), window)

    def read_into(self, out):
        """Copy the values into a writable C-contiguous buffer of exactly `nbytes` bytes."""
        alive(self)
        self.exchange_buffer(out, False)

    def read_part(self, size_t offset, out):
        """Copy the bytes from `offset` on into a writable C-contiguous buffer, which they fill."""
        alive(self)
        self.exchange_buffer(out, False, <int64_t>offset)

    def set_part(self, size_t offset, data):
        """Copy a buffer's bytes over those from `offset` on."""
        alive(self)
        self.exchange_buffer(data, True, <int64_t>offset)

    cdef int exchange_buffer(self, object array, bint writing, int64_t offset=-1) except -1:
        cdef Py_buffer view
        PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS if writing else PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        try:
            self.exchange(view.buf, view.len, writing, offset)
        finally:
            PyBuffer_Release(&view)
        return 0

    cdef int exchange(self, void *data, size_t size, bint writing, int64_t offset=-1) except -1:
        """Copy all bytes in or out, or those from `offset` on. Waits for a computation that uses this tensor's owner.
        """
        cdef object lock = None
        alive(self)
        cdef bint slow = size >= LARGE or not on_host(self.ptr)
        if self.owner.busy() or FREE_THREADED:
            lock = self.owner.lock
            lock.acquire()
        elif slow and self.owner.lock.acquire(blocking=False):  # not worth waiting for
            lock = self.owner.lock
        try:
            alive(self)
            self.owner.check_access(self, writing)
            if not lib.ggml_is_contiguous(self.ptr):
                raise ShapeError(f"{describe(self)} is not contiguous; use its source, or ops.cont(...) of it")
            if offset < 0 and size != lib.ggml_nbytes(self.ptr):
                raise ShapeError(f"{describe(self)} holds {lib.ggml_nbytes(self.ptr)} bytes, the buffer {size}")
            if offset > 0 and (self.owner.is_repacked or <size_t>offset > lib.ggml_nbytes(self.ptr)):
                raise ShapeError(f"{describe(self)} has no part from byte {offset} on")
            offset = max(0, offset)
            if size > lib.ggml_nbytes(self.ptr) - <size_t>offset:
                raise ShapeError(f"{describe(self)} holds {lib.ggml_nbytes(self.ptr)} bytes, got {size} at {offset}")
            staged = self.owner.staged(self.ptr)
            if lock is None or not slow:
                _copy(self.ptr, staged, data, offset, size, writing)
            else:
                with nogil:
                    _copy(self.ptr, staged, data, offset, size, writing)
            self.owner.exchanged(self.ptr, writing)
        finally:
            if lock is not None:
                lock.release()
        return 0

    def __repr__(self):
        if self.owner is None or not self.owner.is_open:
            return "Tensor(closed)"
        return f"Tensor({describe(self)}, name={self.name!r})"

    def __add__(Tensor self, other):
        return _arithmetic(self, other, lib.ggml_add, "+")

    def __sub__(Tensor self, other):
        return _arithmetic(self, other, lib.ggml_sub, "-")

    def __mul__(Tensor self, other):
        return _arithmetic(self, other, lib.ggml_mul, "*")

    def __truediv__(Tensor self, other):
        return _arithmetic(self, other, lib.ggml_div, "/")


cdef int _copy(
    lib.ggml_tensor *ptr, char *staged, void *data, size_t offset, size_t size, bint writing
) except -1 nogil:
    if staged != NULL:
        memcpy(staged + offset if writing else data, data if writing else staged + offset, size)
    elif writing:
        lib.ggml_backend_tensor_set(ptr, data, offset, size)
    else:
        lib.ggml_backend_tensor_get(ptr, data, offset, size)


cdef object _array_over(Tensor t, Window window):
    alive(t)
    cdef lib.ggml_tensor form = t.ptr[0]  # a copy: creating objects may run the garbage collector and close the owner
    cdef int n = lib.ggml_n_dims(&form)
    shape, strides = tuple([form.ne[n - 1 - i] for i in range(n)]), tuple([form.nb[n - 1 - i] for i in range(n)])
    return np.ndarray(shape, kind_of(form.type), window, 0, strides)


ctypedef lib.ggml_tensor *(*binary_op)(lib.ggml_context *, lib.ggml_tensor *, lib.ggml_tensor *) noexcept nogil


cdef object _arithmetic(Tensor a, object other, binary_op op, str sign):
    """Elementwise `op`; the right operand is repeated where its dimensions divide those of the left."""
    if not isinstance(other, Tensor):
        return NotImplemented
    cdef Tensor b = <Tensor>other
    cdef Graph graph = graph_of(a, b)
    if a.ptr.type != lib.GGML_TYPE_F32 or b.ptr.type != lib.GGML_TYPE_F32:
        raise ShapeError(f"{describe(a)} {sign} {describe(b)}: both sides must be f32")
    if not lib.ggml_can_repeat(b.ptr, a.ptr):
        raise ShapeError(f"{describe(a)} {sign} {describe(b)}: the right side's dimensions must divide the left side's")
    if a.ptr.nb[0] != sizeof(float) or b.ptr.nb[0] != sizeof(float):
        raise ShapeError(f"{describe(a)} {sign} {describe(b)}: rows must be contiguous; use ops.cont(...)")
    return wrap(graph, op(graph.ctx, a.ptr, b.ptr))


cdef object _payload(Tensor t, object data):
    """`data` as a C-contiguous array of the tensor's element type. Raises ShapeError."""
    expected = kind_of(t.ptr.type)
    if type(data) is np.ndarray and data.dtype is expected:
        return data if data.flags.c_contiguous else np.ascontiguousarray(data)
    array = np.asarray(data)
    alive(t)
    check_kind(array.dtype, expected, describe(t))
    return np.ascontiguousarray(array)
