"""Tensor: a shape, a type and a place in memory; and what owns tensors.

Shapes are in ggml's order, fastest dimension first, always of rank 4 inside ggml; `Tensor.shape` drops trailing ones.
Weights and cache storage belong to a `Storage`; the nodes of a computation belong to a `Graph`. A tensor keeps its
owner alive, and a closed owner makes its tensors raise ClosedError instead of reading freed memory.
"""

import numpy as np

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t
from libc.stdint cimport int64_t
from libc.string cimport memset

from ollama_engine.ml cimport libggml as lib
from ollama_engine.errors import ClosedError, ShapeError

# Dimensions and byte sizes stay far below 2**63, so that ggml's own products cannot overflow.
cdef int64_t MAX_ELEMENTS = 1LL << 48

_NUMPY_TYPES = {
    "f32": np.dtype(np.float32), "f16": np.dtype(np.float16), "i32": np.dtype(np.int32), "i64": np.dtype(np.int64),
    "i8": np.dtype(np.int8), "i16": np.dtype(np.int16), "f64": np.dtype(np.float64),
}  # fmt: skip


cdef dict _type_ids():
    cdef dict ids = {}
    cdef int i
    for i in range(<int>lib.GGML_TYPE_COUNT):
        # Retired ids have no block size; their names say DEPRECATED or NONE.
        if lib.ggml_blck_size(<lib.ggml_type>i) > 0:
            ids[(<bytes>lib.ggml_type_name(<lib.ggml_type>i)).decode()] = i
    return ids


cdef dict TYPE_IDS = _type_ids()


cdef lib.ggml_type type_of(str dtype) except? lib.GGML_TYPE_COUNT:
    found = TYPE_IDS.get(dtype)
    if found is None:
        raise ShapeError(f"unknown tensor type {dtype!r}; known: {', '.join(TYPE_IDS)}")
    return <lib.ggml_type><int>found


cdef str dtype_name(lib.ggml_type type):
    return (<bytes>lib.ggml_type_name(type)).decode()


cdef int shape_to_ne(object shape, lib.ggml_type type, int64_t *ne) except -1:
    """Check a shape (1 to 4 positive dimensions, whole blocks per row, no overflow) and write it as four numbers."""
    cdef int i
    cdef int64_t total = 1
    cdef tuple dims = (shape,) if isinstance(shape, int) else tuple(shape)
    if not 1 <= len(dims) <= 4:
        raise ShapeError(f"a tensor has 1 to 4 dimensions, got shape {dims}")
    for i in range(4):
        ne[i] = 1
    for i in range(len(dims)):
        dim = dims[i]
        if not isinstance(dim, (int, np.integer)) or not 1 <= dim <= MAX_ELEMENTS:
            raise ShapeError(f"dimensions are whole numbers from 1 up, got shape {dims}")
        ne[i] = dim
        if total > MAX_ELEMENTS // ne[i]:
            raise ShapeError(f"shape {dims} has more than 2**48 elements")
        total *= ne[i]
    if ne[0] % lib.ggml_blck_size(type):
        raise ShapeError(f"rows of {dtype_name(type)} come in blocks of {lib.ggml_blck_size(type)}, got shape {dims}")
    return 0


cdef class Owner:
    """Owns tensors. `closed` turns True once, and then every use of its tensors raises."""

    @property
    def closed(self):
        return self.ctx == NULL

    cdef int charge(self, int tensors) except -1:
        if self.ctx == NULL:
            raise ClosedError(f"this {type(self).__name__} is closed; its tensors are gone")
        return 0

    cdef int mark_written(self, lib.ggml_tensor *ptr) except -1:
        return 0


cdef class Graph(Owner):
    """Base of `Context`: tensors that are the nodes of one computation."""

    cdef int use_stored(self, Tensor t) except -1:
        """Count a weight or cache tensor as a leaf of this graph, and remember whose it is."""
        self.stored.add(<size_t>t.ptr)
        self.sources.add(t.owner)
        return 0

    cdef int check_sources(self) except -1:
        for owner in self.sources:
            (<Owner>owner).charge(0)
        return 0

    cdef int limit_index(self, Tensor index, int64_t rows) except -1:
        """Remember that the values of `index` select among `rows` rows; `Context.compute` checks them.

        ggml checks row numbers while computing, and ends the process on a bad one.
        """
        cdef lib.ggml_tensor *source = index.ptr
        cdef bint moved = False
        while True:
            if source.view_src != NULL and source.op in (lib.GGML_OP_VIEW, lib.GGML_OP_RESHAPE, lib.GGML_OP_PERMUTE,
                                                         lib.GGML_OP_TRANSPOSE):
                source = source.view_src
            elif source.op == lib.GGML_OP_CONT:
                source = source.src[0]
                moved = True
            else:
                break
        if source.op == lib.GGML_OP_ARGSORT:
            if source.ne[0] > rows:
                raise ShapeError(f"indices sorted out of {source.ne[0]} values cannot select among {rows} rows")
            return 0
        if source.op != lib.GGML_OP_NONE:
            raise ShapeError("row numbers must be an input, a constant, or the result of argsort or top_k; "
                             f"got the result of {(<bytes>lib.ggml_op_name(source.op)).decode()}")
        if moved:
            index = wrap(index.owner, source)
        key = <size_t>index.ptr
        known = self.index_limits.get(key)
        if known is None or known[1] > rows:
            self.index_limits[key] = (index, rows)
        return 0


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
    if t.owner is None or t.owner.ctx == NULL:
        raise ClosedError("this tensor's memory is gone: its Context, Weights or cache was closed")
    return 0


cdef Graph graph_of(Tensor a, Tensor b=None, Tensor c=None):
    """The graph that the operands belong to, with room for the result; weights and cache belong to none."""
    alive(a)
    cdef Graph graph = <Graph>a.owner if a.owner.is_graph else None
    graph = _join(graph, b)
    graph = _join(graph, c)
    if graph is None:
        raise ShapeError("no operand belongs to a context (weights and cache do not); "
                         "start from ctx.input(...), or bring one in with ctx.view(...)")
    graph.charge(3)
    if not a.owner.is_graph:
        graph.use_stored(a)
    if b is not None and not b.owner.is_graph:
        graph.use_stored(b)
    if c is not None and not c.owner.is_graph:
        graph.use_stored(c)
    return graph


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
    """One n-dimensional array of a graph, a weight, or a piece of a cache.

    Made by `Context`, `Weights`, `Storage` and the functions in `ollama_engine.ml.ops`, never directly.
    """

    def __init__(self):
        raise TypeError("tensors are made by a Context (ctx.input, ctx.from_floats ...), not by Tensor()")

    @property
    def shape(self):
        """Dimensions in ggml's order (fastest first), trailing ones dropped."""
        alive(self)
        cdef int n = 4
        while n > 1 and self.ptr.ne[n - 1] == 1:
            n -= 1
        return tuple([self.ptr.ne[i] for i in range(n)])

    def dim(self, int axis):
        """Size of one dimension, 0 to 3; 1 beyond the rank."""
        alive(self)
        if not 0 <= axis < 4:
            raise ShapeError(f"axis is 0 to 3, got {axis}")
        return self.ptr.ne[axis]

    def stride(self, int axis):
        """Bytes between two elements along one dimension (between two blocks for axis 0)."""
        alive(self)
        if not 0 <= axis < 4:
            raise ShapeError(f"axis is 0 to 3, got {axis}")
        return self.ptr.nb[axis]

    @property
    def dtype(self):
        """ggml's name of the element type: "f32", "f16", "q4_K" ..."""
        alive(self)
        return dtype_name(self.ptr.type)

    @property
    def nbytes(self):
        alive(self)
        return lib.ggml_nbytes(self.ptr)

    @property
    def contiguous(self):
        alive(self)
        return lib.ggml_is_contiguous(self.ptr)

    @property
    def name(self):
        alive(self)
        return (<bytes>self.ptr.name).decode("utf-8", "replace")

    def named(self, str name):
        """Give the tensor a name (at most 63 bytes are kept) and return it."""
        alive(self)
        lib.ggml_set_name(self.ptr, name.encode()[: lib.GGML_MAX_NAME - 1])
        return self

    def set(self, data):
        """Copy `data` (any C-contiguous buffer of the same number of bytes and element type) into the tensor.

        Only tensors that hold memory can be written: inputs of an allocated graph, constants, stored tensors.
        Raises ShapeError where type or size differ.
        """
        alive(self)
        cdef Py_buffer view
        array = self._checked(data)
        if not lib.ggml_is_contiguous(self.ptr):
            raise ShapeError(f"cannot write into {describe(self)}: it is not contiguous")
        if self.ptr.op != lib.GGML_OP_NONE and self.ptr.op != lib.GGML_OP_VIEW:
            raise ShapeError(f"cannot write into {describe(self)}: it is computed")
        if self.ptr.data == NULL or self.ptr.buffer == NULL:
            raise ShapeError(f"cannot write into {describe(self)}: it has no memory yet; call Context.alloc() first")
        PyObject_GetBuffer(array, &view, PyBUF_C_CONTIGUOUS)
        try:
            if <size_t>view.len != lib.ggml_nbytes(self.ptr):
                raise ShapeError(f"{describe(self)} takes {lib.ggml_nbytes(self.ptr)} bytes, got {view.len}")
            if view.len:
                lib.ggml_backend_tensor_set(self.ptr, view.buf, 0, view.len)
            self.owner.mark_written(self.ptr)
        finally:
            PyBuffer_Release(&view)

    def set_bytes(self, data):
        """Copy the tensor's memory as it lies in a file: any buffer of exactly `nbytes` bytes, whatever the type.

        On packed storage this converts to the packed layout.
        """
        alive(self)
        cdef Py_buffer view
        if self.ptr.op != lib.GGML_OP_NONE or self.ptr.data == NULL or self.ptr.buffer == NULL:
            raise ShapeError(f"cannot write into {describe(self)}: it is computed, or has no memory yet")
        PyObject_GetBuffer(data, &view, PyBUF_C_CONTIGUOUS)
        try:
            if <size_t>view.len != lib.ggml_nbytes(self.ptr):
                raise ShapeError(f"{describe(self)} takes {lib.ggml_nbytes(self.ptr)} bytes, got {view.len}")
            with nogil:
                lib.ggml_backend_tensor_set(self.ptr, view.buf, 0, view.len)
            self.owner.mark_written(self.ptr)
        finally:
            PyBuffer_Release(&view)

    def _checked(self, data):
        expected = _NUMPY_TYPES.get(dtype_name(self.ptr.type))
        if expected is None:  # quantized types and bf16 travel as raw bytes
            array = np.asarray(data)
            if array.dtype.kind not in "uV":
                raise ShapeError(f"{describe(self)} takes its raw bytes, got an array of {array.dtype}")
            return np.ascontiguousarray(array)
        array = np.asarray(data)
        if array.dtype != expected:
            raise ShapeError(f"{describe(self)} takes {expected} values, got {array.dtype}")
        return np.ascontiguousarray(array)

    def numpy(self):
        """A copy of the values as a numpy array in numpy's order (shape reversed); raw bytes for quantized types.

        The tensor must hold memory: an output of a computed graph, a constant, or a stored tensor.
        """
        alive(self)
        cdef Py_buffer view
        if self.ptr.data == NULL or self.ptr.buffer == NULL:
            raise ShapeError(f"{describe(self)} has no values: compute its graph first, with it among the outputs")
        if not lib.ggml_is_contiguous(self.ptr):
            raise ShapeError(f"{describe(self)} is not contiguous; read ops.cont(...) of it")
        kind = _NUMPY_TYPES.get(dtype_name(self.ptr.type))
        if kind is None:
            out = np.empty(lib.ggml_nbytes(self.ptr), dtype=np.uint8)
        else:
            out = np.empty(tuple(reversed(self.shape)), dtype=kind)
        PyObject_GetBuffer(out, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        try:
            if view.len:
                lib.ggml_backend_tensor_get(self.ptr, view.buf, 0, view.len)
        finally:
            PyBuffer_Release(&view)
        return out

    def read_into(self, out):
        """Copy the values into a writable C-contiguous buffer of exactly `nbytes` bytes."""
        alive(self)
        cdef Py_buffer view
        if self.ptr.data == NULL or self.ptr.buffer == NULL or not lib.ggml_is_contiguous(self.ptr):
            raise ShapeError(f"{describe(self)} has no values to read: compute its graph first, with it as an output")
        PyObject_GetBuffer(out, &view, PyBUF_C_CONTIGUOUS | PyBUF_WRITABLE)
        try:
            if <size_t>view.len != lib.ggml_nbytes(self.ptr):
                raise ShapeError(f"{describe(self)} holds {lib.ggml_nbytes(self.ptr)} bytes, the buffer {view.len}")
            if view.len:
                lib.ggml_backend_tensor_get(self.ptr, view.buf, 0, view.len)
        finally:
            PyBuffer_Release(&view)

    def __repr__(self):
        if self.owner is None or self.owner.ctx == NULL:
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


ctypedef lib.ggml_tensor *(*binary_op)(lib.ggml_context *, lib.ggml_tensor *, lib.ggml_tensor *) noexcept nogil


cdef object _arithmetic(Tensor a, object other, binary_op op, str sign):
    """Element by element; the right operand is repeated where its dimensions divide the left one's."""
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
