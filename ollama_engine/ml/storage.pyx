"""Storage: tensors that outlive graphs, such as a cache's keys and values or a model's weights."""

from libc.stdint cimport int64_t

from ollama_engine.errors import NoMemoryError, ShapeError
from ollama_engine.ml.hostmem import available_bytes

from ollama_engine.ml cimport libggml as lib
from ollama_engine.ml.backend cimport Backend
from ollama_engine.ml.tensor cimport Owner, shape_to_ne, type_of, wrap


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
