"""Storage: tensors that outlive graphs, such as a cache's keys and values or a model's weights."""

cimport cython
from cpython.buffer cimport PyBUF_C_CONTIGUOUS, PyBuffer_Release, PyObject_GetBuffer
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uintptr_t
from libc.stdlib cimport calloc, free

from ollama_engine.errors import ClosedError, ComputeError, NoMemoryError, ShapeError
from ollama_engine.ml.device.hostmem import available_bytes

from ollama_engine.ml.ggml cimport libfanout as fan
from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml cimport libpages as pages
from ollama_engine.ml.graph.backend cimport Backend
from ollama_engine.ml.device.device cimport cpu_function
from ollama_engine.ml.graph.tensor cimport Graph, Owner, Tensor, describe, wrap
from ollama_engine.ml.graph.types cimport shape_to_ne, type_of, whole
from ollama_engine.ml.graph.window cimport Buffer, new_buffer


# Alignment in bytes that ggml's CPU kernels expect of a tensor's address.
ALIGNMENT = 32


cdef struct Filling:
    lib.ggml_tensor *target
    Py_buffer source


cdef class Storage(Owner):
    """Tensors declared with `add`, then given memory together by `allocate`, `allocate_repacked` or `map`.

    Graphs that read a closed storage raise ClosedError when they are computed.
    """

    def __init__(self, Backend backend not None, capacity):
        cdef int64_t room = whole(capacity)
        if self.ctx != NULL:
            raise ShapeError("a Storage is initialised once")
        if not 1 <= room <= 1 << 20:
            raise ShapeError(f"a storage holds 1 to 2**20 tensors, got {capacity}")
        backend.check_open()
        self.backend = backend
        self.lock = backend.lock
        self.capacity = room
        self.tensors = {}
        self.buffers = []
        self.views = []
        self.start(lib.ggml_tensor_overhead() * room + 1024)
        self.is_open = True
        backend.enrol(self)

    cdef int busy(self) except -1:
        # Any graph may read these tensors.
        self.backend.check_open()
        if self.in_use():
            raise ComputeError("a graph that reads these tensors is computing in the background; wait() for it first")
        return 1

    cdef int exchanged(self, lib.ggml_tensor *ptr, bint writing) except -1:
        return self.backend.check_workers()

    cdef bint in_use(self) except -1:
        """Whether the graph that was launched reads these tensors."""
        if self.backend is None or not self.backend.launcher.running:
            return False
        return <size_t><void *>self in (<Graph>self.backend.busy).sources

    cdef int check_access(self, Tensor t, bint writing) except -1:
        if t.ptr.data == NULL or t.ptr.buffer == NULL:
            raise ShapeError(f"{describe(t)} has no memory yet; allocate its Storage first")
        if writing and self.read_only:
            raise ShapeError(f"cannot write into {describe(t)}: it lies in a mapped file")
        if not writing and self.is_repacked:
            raise ShapeError(f"cannot read {describe(t)}: it is repacked")
        return 0

    def add(self, str name not None, str dtype not None, shape):
        """Declare a tensor; it has no memory until `allocate`, `allocate_repacked` or `map`."""
        cdef int64_t ne[4]
        cdef lib.ggml_type kind = type_of(dtype)
        shape_to_ne(shape, kind, ne)
        self.charge(0)
        self.backend.check_open()
        with self.lock:
            self.check_fresh("add tensors")
            if name in self.tensors:
                raise ShapeError(f"this storage has a tensor {name!r} already")
            if len(self.tensors) >= self.capacity:
                raise ShapeError(f"this storage was made for {self.capacity} tensors")
            t = wrap(self, lib.ggml_new_tensor(self.ctx, kind, 4, ne))
            self.tensors[name] = t
        return t.named(name)

    cdef int check_fresh(self, str what) except -1:
        """With the lock held: memory is given once, to all tensors at once."""
        self.charge(0)
        self.backend.check_open()
        if self.placed:
            raise ShapeError(f"cannot {what}: this storage has its memory already")
        return 0

    def planned_bytes(self, device):
        """Bytes that `allocate(device)` will take."""
        cdef int number = self.check_device(device)
        with self.lock:
            self.check_device(number)
            return lib.ggml_backend_alloc_ctx_tensors_from_buft_size(self.ctx, self.backend.buffer_type(number))

    def allocate(self, device):
        """Allocate all declared tensors on one device and zero them. Raises NoMemoryError."""
        cdef int number = self.check_device(device)
        with self.lock:
            self.check_device(number)
            self.take(self.backend.buffer_type(number), self.backend.devices[number].name)
            _zero((<Buffer>self.buffers[-1]).buffer, self.backend.threads)

    def allocate_repacked(self):
        """Allocate all declared tensors on the CPU in its repacked layout; `set_bytes` converts. See `can_repack`."""
        cdef lib.ggml_backend_buffer_type_t kind
        self.charge(0)
        self.backend.check_open()
        with self.lock:
            for name, t in self.tensors.items():
                if not can_repack(self.backend, t.dtype, t.shape):
                    raise ShapeError(f"{name}: the CPU of this build has no repacked layout for {describe(t)}")
            self.check_fresh("allocate")
            kind = _repack_type(self.backend)
            if kind == NULL:
                raise ShapeError("the CPU backend of this build has no repacked layout")
            self.is_repacked = True
            try:
                self.take(kind, "CPU")
            except BaseException:
                self.is_repacked = False
                raise
            self.mark_weights()

    cdef int take(self, lib.ggml_backend_buffer_type_t kind, str where) except -1:
        cdef lib.ggml_backend_buffer_t buffer = NULL
        cdef size_t needed
        self.check_fresh("allocate")
        if not self.tensors:
            raise ShapeError("this storage has no tensors to allocate; declare them with add(...)")
        with nogil:
            needed = lib.ggml_backend_alloc_ctx_tensors_from_buft_size(self.ctx, kind)
        # Repacked memory is host memory too, although ggml does not report it as such.
        cdef bint on_host = lib.ggml_backend_buft_is_host(kind) or self.is_repacked
        if on_host and needed > available_bytes():
            raise NoMemoryError(f"{needed >> 20} MiB are needed, {available_bytes() >> 20} MiB are available")
        self.placed = True
        with nogil:
            buffer = lib.ggml_backend_alloc_ctx_tensors_from_buft(self.ctx, kind)
        if buffer == NULL:
            self.placed = False
            self.backend.check_workers()
            raise NoMemoryError(f"device {where} has no {-(-needed >> 20)} MiB left")
        if on_host:
            pages.oe_pages_huge(lib.ggml_backend_buffer_get_base(buffer), lib.ggml_backend_buffer_get_size(buffer))
        self.buffers.append(new_buffer(buffer))
        return 0

    def map(self, memory, offsets):
        """Make the declared tensors windows into `memory` (a read-only, page-aligned buffer such as an mmap).

        `offsets` gives the byte at which each tensor starts, {name: offset}. Nothing is copied; the CPU reads there.
        `memory` cannot be closed or resized before this storage is closed.
        """
        cdef Py_buffer view
        cdef Buffer buffer
        cdef size_t place
        places = {str(name): int(offset) for name, offset in dict(offsets).items()}
        held = memoryview(memory)
        PyObject_GetBuffer(held, &view, PyBUF_C_CONTIGUOUS)
        base, length = <char *>view.buf, view.len
        PyBuffer_Release(&view)
        self.charge(0)
        self.backend.check_open()
        with self.lock:
            self.check_fresh("map")
            self._check_places(<uintptr_t>base, length, places)
            cpu = self.backend.cpu_device
            buffer = new_buffer(lib.ggml_backend_dev_buffer_from_host_ptr(cpu, base, length, length))
            if buffer is None:
                raise NoMemoryError("the mapped file cannot be used as a buffer")
            self.placed = True
            self.read_only = True
            self.views.append(held)
            self.buffers.append(buffer)
            for name, t in self.tensors.items():
                place = places[name]
                lib.ggml_backend_tensor_alloc(buffer.buffer, (<Tensor>t).ptr, base + place)
            self.mark_weights()

    def populate(self, offset, size):
        """Page in `size` bytes of the mapped memory from byte `offset` on, so that the first step does not wait for it.

        All threads of the backend take part. They ask for a few pages of each 64 KiB, and Linux maps the pages around
        those with them. Before, the mapping asks for large pages: Linux 6.16 and later has them for files on ext4.
        Returns False where the system lacks the call (Linux has it since 5.14) or cannot read a page. Raises ShapeError
        for bytes that are not mapped.
        """
        cdef int64_t first = whole(offset), length = whole(size)
        cdef int threads = self.backend.threads, status
        cdef char *start
        self.charge(0)
        with self.lock:
            self.busy()
            if not self.read_only:
                raise ShapeError("this storage is not mapped; call map(...) first")
            buffer = (<Buffer>self.buffers[0]).buffer
            room = lib.ggml_backend_buffer_get_size(buffer)
            if first < 0 or not 0 <= length <= <int64_t>room or first > <int64_t>room - length:
                raise ShapeError(f"{length} bytes from byte {first} are not all within the {room} mapped ones")
            start = <char *>lib.ggml_backend_buffer_get_base(buffer) + first
            pages.oe_pages_huge(lib.ggml_backend_buffer_get_base(buffer), room)
            with nogil:
                status = fan.oe_prefault_populate(start, length, threads)
        return status == 0

    def fill(self, contents):
        """`Tensor.set_bytes` for several tensors at once, {name: buffer}, on all threads of the backend.

        For memory of the CPU, repacked or not. Raises as `set_bytes` does, with nothing changed.
        """
        contents = dict(contents)  # a copy: another thread may change the caller's dict
        cdef size_t held = 0, n = len(contents)
        cdef int threads = self.backend.threads
        cdef Filling *fillings = <Filling *>calloc(max(1, n), sizeof(Filling))
        if fillings == NULL:
            raise NoMemoryError("no memory for a list of tensors")
        try:
            for name, data in contents.items():
                fillings[held].target = (<Tensor>self[name]).ptr
                PyObject_GetBuffer(data, &fillings[held].source, PyBUF_C_CONTIGUOUS)
                held += 1
            with self.lock:
                self.busy()
                _check_fillings(self, contents, fillings)
                with nogil:
                    fan.oe_fan_out(n, threads, _fill, fillings)
        finally:
            for i in range(held):
                PyBuffer_Release(&fillings[i].source)
            free(fillings)

    def _check_places(self, base, length, places):
        if base % ALIGNMENT or not length:
            raise ShapeError(f"memory to map must start at a multiple of {ALIGNMENT} bytes and hold something")
        if places.keys() != self.tensors.keys():
            raise ShapeError(f"map takes the offsets of exactly the tensors added, {list(self.tensors)}; "
                             f"got those of {list(places)}")
        for name, t in self.tensors.items():
            if places[name] < 0 or places[name] % ALIGNMENT or places[name] + t.nbytes > length:
                raise ShapeError(f"{name} cannot be mapped: {t.nbytes} bytes from byte {places[name]} of {length}, "
                                 f"offsets being multiples of {ALIGNMENT}")

    @cython.critical_section
    def mark_weights(self):
        """Mark the tensors as weights: the scheduler then runs their products on the device that holds them."""
        self.charge(0)
        for holder in self.buffers:
            lib.ggml_backend_buffer_set_usage((<Buffer>holder).buffer, lib.GGML_BACKEND_BUFFER_USAGE_WEIGHTS)

    cdef int check_device(self, object device) except -1:
        cdef int64_t number = whole(device)
        self.charge(0)
        self.backend.check_open()
        if not 0 <= number < len(self.backend.devices):
            raise ShapeError(f"device is 0 to {len(self.backend.devices) - 1}, got {number}")
        return number

    @property
    @cython.critical_section
    def nbytes(self):
        """Bytes allocated or mapped; 0 once closed."""
        if not self.is_open:
            return 0
        return sum(lib.ggml_backend_buffer_get_size((<Buffer>b).buffer) for b in self.buffers)

    @cython.critical_section
    def __getitem__(self, str name not None):
        self.charge(0)
        return self.tensors[name]

    def close(self):
        """Free the memory; tensors of this storage raise ClosedError from now on. Safe to call twice."""
        if not self.is_open:
            return
        try:
            self.backend.check_open()
        except ClosedError:  # closed meanwhile, or a forked child, where the lock may be held for ever
            self.forget()
            return
        with self.lock:
            if self.in_use():
                self.backend.busy.abandon()
            elif not self.backend.launcher.running:
                self.backend.check_idle()
            # A graph that reads these tensors is not computed any more: Context.compute looks at its sources.
            self.forget()

    cdef int forget(self) except -1:
        # The descriptions stay until nothing refers to them: views in graphs point at them.
        with cython.critical_section(self):
            self.is_open = False
            self.tensors, self.buffers, views, self.views = {}, [], self.views, []
        for view in views:
            view.release()
        return 0

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()


cdef int _check_fillings(Storage storage, contents, const Filling *fillings) except -1:
    """Raise ShapeError unless every tensor accepts its buffer. The caller holds the lock."""
    for holder in storage.buffers:
        if not storage.is_repacked and not lib.ggml_backend_buffer_is_host((<Buffer>holder).buffer):
            raise ShapeError("fill is for memory of the CPU; set the tensors of other devices one by one")
    for i, name in enumerate(contents):
        storage.check_access(storage[name], True)
        needed, given = lib.ggml_nbytes(fillings[i].target), fillings[i].source.len
        if <Py_ssize_t>needed != given:
            raise ShapeError(f"{describe(storage[name])} holds {needed} bytes, the buffer {given}")
    return 0


cdef int _zero(lib.ggml_backend_buffer_t buffer, int threads) except -1:
    cdef bint on_host = lib.ggml_backend_buffer_is_host(buffer)
    cdef void *start
    with nogil:
        start = lib.ggml_backend_buffer_get_base(buffer)
        if on_host:
            fan.oe_prefault_zero(start, lib.ggml_backend_buffer_get_size(buffer), threads)
        else:
            lib.ggml_backend_buffer_clear(buffer, 0)
    return 0


cdef int _fill(void *context, size_t i) noexcept nogil:
    cdef Filling *filling = <Filling *>context + i
    lib.ggml_backend_tensor_set(filling.target, filling.source.buf, 0, filling.source.len)
    return 0


cdef lib.ggml_backend_buffer_type_t _repack_type(Backend backend):
    """The CPU's buffer type that interleaves rows for few-row products (ggml's "repack"), or NULL."""
    get = <lib.ggml_backend_dev_get_extra_bufts_t>cpu_function("ggml_backend_dev_get_extra_bufts")
    cdef lib.ggml_backend_buffer_type_t *kinds = get(backend.cpu_device)
    while kinds != NULL and kinds[0] != NULL:
        if (<bytes>lib.ggml_backend_buft_name(kinds[0])) == b"CPU_REPACK":
            return kinds[0]
        kinds += 1
    return NULL


def can_repack(Backend backend not None, str dtype not None, shape):
    """Whether the CPU has a repacked layout, and a product for it, for a weight of this type and shape."""
    cdef lib.ggml_backend_buffer_type_t kind
    cdef lib.ggml_init_params params
    cdef Buffer empty
    cdef int64_t ne[4]
    cdef lib.ggml_type weight_type = type_of(dtype)
    shape_to_ne(shape, weight_type, ne)
    backend.check_open()
    kind = _repack_type(backend)
    if kind == NULL or ne[3] != 1 or not lib.ggml_is_quantized(weight_type):
        return False
    # ggml answers only for a complete operation, so make one whose weight lies in an empty repacked buffer.
    empty = new_buffer(lib.ggml_backend_buft_alloc_buffer(kind, 0))
    if empty is None:
        raise NoMemoryError("no memory for a trial product")
    params.mem_size = lib.ggml_tensor_overhead() * 8
    params.mem_buffer = NULL
    params.no_alloc = True
    cdef lib.ggml_context *ctx = lib.ggml_init(params)
    weight = lib.ggml_new_tensor(ctx, weight_type, 4, ne)
    weight.buffer = empty.buffer
    supported = lib.ggml_backend_dev_supports_op(backend.cpu_device, _trial_product(ctx, weight))
    lib.ggml_free(ctx)
    return bool(supported)


cdef lib.ggml_tensor *_trial_product(lib.ggml_context *ctx, lib.ggml_tensor *weight):
    cdef int64_t ne[4]
    ne[0], ne[1], ne[2], ne[3] = weight.ne[0], 1, 1, 1
    if weight.ne[2] == 1:
        return lib.ggml_mul_mat(ctx, weight, lib.ggml_new_tensor(ctx, lib.GGML_TYPE_F32, 4, ne))
    values = lib.ggml_new_tensor(ctx, lib.GGML_TYPE_F32, 4, ne)
    ne[0] = 1
    return lib.ggml_mul_mat_id(ctx, weight, values, lib.ggml_new_tensor(ctx, lib.GGML_TYPE_I32, 4, ne))
