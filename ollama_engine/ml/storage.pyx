"""Storage: tensors that outlive graphs, such as a cache's keys and values or a model's weights."""

from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.errors import NoMemoryError, ShapeError
from ollama_engine.ml.hostmem import available_bytes

from ollama_engine.ml cimport libggml as lib
from ollama_engine.ml.backend cimport Backend
from ollama_engine.ml.device cimport cpu_function
from ollama_engine.ml.tensor cimport Owner, Tensor, shape_to_ne, type_of, wrap


# What ggml's CPU kernels expect of the address of a tensor.
ALIGNMENT = 32


cdef class BufferHolder:
    """One allocation of a device, freed with its storage."""

    def __dealloc__(self):
        if self.buffer != NULL:
            lib.ggml_backend_buffer_free(self.buffer)


cdef class Storage(Owner):
    """Tensors declared with `add`, then allocated together with `allocate`: planned first, committed at once."""

    def __init__(self, Backend backend not None, int capacity):
        cdef lib.ggml_init_params params
        if self.ctx != NULL:
            raise ShapeError("a Storage is initialised once")
        if not 1 <= capacity <= 1 << 20:
            raise ShapeError(f"a storage holds 1 to 2**20 tensors, got {capacity}")
        backend.check_open()
        self.backend = backend
        self.capacity = capacity
        self.tensors = {}
        self.buffers = []
        self.keep_alive = []
        params.mem_size = lib.ggml_tensor_overhead() * capacity + 1024
        params.mem_buffer = NULL
        params.no_alloc = True
        self.ctx = lib.ggml_init(params)
        if self.ctx == NULL:
            raise NoMemoryError(f"no memory for the descriptions of {capacity} tensors")
        backend.members.add(self)

    def add(self, str name, str dtype, shape):
        """Declare a tensor; it has no memory until `allocate`."""
        cdef int64_t ne[4]
        cdef lib.ggml_type kind = type_of(dtype)
        shape_to_ne(shape, kind, ne)
        self.charge(0)
        if name in self.tensors:
            raise ShapeError(f"this storage has a tensor {name!r} already")
        if len(self.tensors) >= self.capacity:
            raise ShapeError(f"this storage was made for {self.capacity} tensors")
        t = wrap(self, lib.ggml_new_tensor(self.ctx, kind, 4, ne)).named(name)
        self.tensors[name] = t
        return t

    def planned_bytes(self, int device):
        """Bytes that `allocate(device)` will take."""
        self._check_device(device)
        return lib.ggml_backend_alloc_ctx_tensors_from_buft_size(self.ctx, self.backend.buffer_type(device))

    def allocate(self, int device):
        """Allocate all declared tensors on one device and zero them. Raises NoMemoryError."""
        cdef BufferHolder holder
        cdef lib.ggml_backend_buffer_type_t kind
        needed = self.planned_bytes(device)
        kind = self.backend.buffer_type(device)
        if lib.ggml_backend_buft_is_host(kind) and needed > available_bytes():
            raise NoMemoryError(f"{needed >> 20} MiB are needed, {available_bytes() >> 20} MiB are available")
        holder = BufferHolder.__new__(BufferHolder)
        with nogil:
            holder.buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(self.ctx, kind)
        if holder.buffer == NULL:
            raise NoMemoryError(f"device {self.backend.devices[device].name} has no {needed >> 20} MiB left")
        self.buffers.append(holder)
        with nogil:
            lib.ggml_backend_buffer_clear(holder.buffer, 0)

    def map(self, memory, offsets):
        """Let the declared tensors be windows into `memory` (a read-only buffer on page boundaries, such as an mmap).

        `offsets` gives the byte at which each tensor starts, {name: offset}. Nothing is copied; the CPU reads there.
        """
        cdef Py_buffer view
        cdef BufferHolder holder = BufferHolder.__new__(BufferHolder)
        cdef lib.ggml_backend_dev_t cpu = lib.ggml_backend_get_device(self.backend.handles[self.backend.n_handles - 1])
        cdef Tensor t
        self.charge(0)
        PyObject_GetBuffer(memory, &view, PyBUF_C_CONTIGUOUS)
        base, length = <char *>view.buf, view.len
        PyBuffer_Release(&view)
        for name, offset in offsets.items():
            t = self.tensors[name]
            if offset < 0 or offset % ALIGNMENT or offset + lib.ggml_nbytes(t.ptr) > length:
                raise ShapeError(f"{name} cannot be mapped: {lib.ggml_nbytes(t.ptr)} bytes from byte {offset} of "
                                 f"{length}, offsets being multiples of {ALIGNMENT}")
        self.keep_alive.append(memory)
        holder.buffer = lib.ggml_backend_dev_buffer_from_host_ptr(cpu, base, length, length)
        if holder.buffer == NULL:
            raise NoMemoryError("the mapped file cannot be used as a buffer")
        lib.ggml_backend_buffer_set_usage(holder.buffer, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        self.buffers.append(holder)
        for name, offset in offsets.items():
            t = self.tensors[name]
            lib.ggml_backend_tensor_alloc(holder.buffer, t.ptr, base + <size_t>offset)

    def allocate_packed(self):
        """Allocate all declared tensors on the CPU in its packed layout; `set` converts. See `can_pack`."""
        cdef lib.ggml_backend_buffer_type_t kind = _packed_type(self.backend)
        cdef BufferHolder holder = BufferHolder.__new__(BufferHolder)
        self.charge(0)
        if kind == NULL:
            raise ShapeError("the CPU backend of this build has no packed layout")
        needed = lib.ggml_backend_alloc_ctx_tensors_from_buft_size(self.ctx, kind)
        if needed > available_bytes():
            raise NoMemoryError(f"{needed >> 20} MiB are needed, {available_bytes() >> 20} MiB are available")
        with nogil:
            holder.buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(self.ctx, kind)
        if holder.buffer == NULL:
            raise NoMemoryError(f"no memory for {needed >> 20} MiB of packed weights")
        lib.ggml_backend_buffer_set_usage(holder.buffer, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)
        self.buffers.append(holder)

    def mark_weights(self):
        """Tell the scheduler to run products with these tensors where they are."""
        for holder in self.buffers:
            lib.ggml_backend_buffer_set_usage((<BufferHolder>holder).buffer, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)

    def _check_device(self, int device):
        self.charge(0)
        self.backend.check_open()
        if not 0 <= device < len(self.backend.devices):
            raise ShapeError(f"device is 0 to {len(self.backend.devices) - 1}, got {device}")

    @property
    def nbytes(self):
        """Bytes allocated."""
        return sum(lib.ggml_backend_buffer_get_size((<BufferHolder>b).buffer) for b in self.buffers)

    def __getitem__(self, str name):
        self.charge(0)
        return self.tensors[name]

    def close(self):
        """Free the memory; tensors of this storage raise ClosedError from now on. Safe to call twice."""
        if self.backend is None:
            return
        with self.backend.lock:
            if self.ctx != NULL:
                # A graph that reads these tensors must not be computed any more.
                if self.backend.allocated is not None and self.backend.sched != NULL:
                    lib.ggml_backend_sched_reset(self.backend.sched)
                    self.backend.allocated = None
                lib.ggml_free(self.ctx)
                self.ctx = NULL
            self.tensors = {}
            self.buffers = []
            self.keep_alive = []

    def __dealloc__(self):
        if self.ctx != NULL:
            lib.ggml_free(self.ctx)


cdef lib.ggml_backend_buffer_type_t _packed_type(Backend backend):
    """The CPU's buffer type that interleaves rows for few-row products (ggml's "repack"), or NULL."""
    cdef lib.ggml_backend_dev_t cpu = lib.ggml_backend_get_device(backend.handles[backend.n_handles - 1])
    get = <lib.ggml_backend_dev_get_extra_bufts_t>cpu_function("ggml_backend_dev_get_extra_bufts")
    cdef lib.ggml_backend_buffer_type_t *kinds = get(cpu)
    while kinds != NULL and kinds[0] != NULL:
        if (<bytes>lib.ggml_backend_buft_name(kinds[0])) == b"CPU_REPACK":
            return kinds[0]
        kinds += 1
    return NULL


def can_pack(Backend backend not None, str dtype, shape):
    """Whether the CPU has a packed layout, and a product for it, for a weight of this type and shape."""
    cdef lib.ggml_backend_buffer_type_t kind = _packed_type(backend)
    cdef lib.ggml_init_params params
    cdef BufferHolder empty = BufferHolder.__new__(BufferHolder)
    cdef int64_t ne[4]
    cdef lib.ggml_type weight_type = type_of(dtype)
    shape_to_ne(shape, weight_type, ne)
    backend.check_open()
    if kind == NULL or len(tuple(shape)) not in (2, 3):
        return False
    params.mem_size = lib.ggml_tensor_overhead() * 8
    params.mem_buffer = NULL
    params.no_alloc = True
    cdef lib.ggml_context *ctx = lib.ggml_init(params)
    if ctx == NULL:
        raise NoMemoryError("no memory for a trial product")
    try:
        # ggml answers for a finished operation only: the weight lies in an empty buffer of that kind.
        empty.buffer = lib.ggml_backend_buft_alloc_buffer(kind, 0)
        weight = lib.ggml_new_tensor(ctx, weight_type, 4, ne)
        weight.buffer = empty.buffer
        product = _trial_product(ctx, weight)
        cpu = lib.ggml_backend_get_device(backend.handles[backend.n_handles - 1])
        return bool(lib.ggml_backend_dev_supports_op(cpu, product))
    finally:
        lib.ggml_free(ctx)


cdef lib.ggml_tensor *_trial_product(lib.ggml_context *ctx, lib.ggml_tensor *weight):
    cdef int64_t ne[4]
    ne[0], ne[1], ne[2], ne[3] = weight.ne[0], 1, 1, 1
    if weight.ne[2] == 1:
        return lib.ggml_mul_mat(ctx, weight, lib.ggml_new_tensor(ctx, lib.GGML_TYPE_F32, 4, ne))
    values = lib.ggml_new_tensor(ctx, lib.GGML_TYPE_F32, 4, ne)
    ne[0] = 1
    return lib.ggml_mul_mat_id(ctx, weight, values, lib.ggml_new_tensor(ctx, lib.GGML_TYPE_I32, 4, ne))
