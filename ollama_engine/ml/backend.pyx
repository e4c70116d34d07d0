"""Backend: the devices, threads and graph scheduler that one engine computes with.

Everything that lives on it (contexts, weights, caches) is closed before it. Two backends in one process share
nothing: each has a thread pool of its own.
"""

import logging
import threading
import weakref

from libc.stdint cimport int64_t

from ollama_engine.errors import ClosedError, ConfigError, DeviceError, NoMemoryError
from ollama_engine.ml import placement
from ollama_engine.ml.device import devices as all_devices

from ollama_engine.ml cimport libggml as lib
from ollama_engine.ml.device cimport cpu_function, device_handle
from ollama_engine.ml.tensor cimport shape_to_ne, type_of

log = logging.getLogger(__name__)

DEFAULT_MAX_NODES = 8192
# ggml visits a graph by recursion; this depth fits the stack of a Python thread.
MAX_NODES_LIMIT = 65536


cdef class Backend:
    """Devices and threads for one engine.

    `params` is a `BackendParams`; its threads, gpu_layers, main_gpu and tensor_split take effect here.
    `max_nodes` bounds the tensors of one graph. Raises ConfigError, DeviceError, NoMemoryError.
    """

    def __cinit__(self):
        self.n_handles = 0
        self.sched = NULL
        self.threadpool = NULL

    def __init__(self, params, *, int max_nodes=DEFAULT_MAX_NODES):
        if self.n_handles:
            raise ConfigError("a Backend is initialised once")
        if not 16 <= max_nodes <= MAX_NODES_LIMIT:
            raise ConfigError(f"max_nodes is 16 to {MAX_NODES_LIMIT}, got {max_nodes}")
        self.params = params
        self.max_nodes = max_nodes
        self.lock = threading.RLock()
        self.members = weakref.WeakSet()
        self.devices = placement.choose_devices(all_devices(), params)
        self.threads = placement.choose_threads(params.threads)
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        log.info("backend: devices %s, %d threads", ", ".join(d.name for d in self.devices), self.threads,
                 extra={"devices": self.devices, "threads": self.threads})

    def _start(self):
        cdef lib.ggml_backend_t handle
        for device in self.devices:
            handle = lib.ggml_backend_dev_init(device_handle(device), NULL)
            if handle == NULL:
                raise DeviceError(f"device {device.name} ({device.description}) cannot be started")
            self.handles[self.n_handles] = handle
            self.n_handles += 1
        self._start_threads()
        self.sched = lib.ggml_backend_sched_new(self.handles, NULL, self.n_handles, self.max_nodes, False, True)
        if self.sched == NULL:
            raise NoMemoryError("no memory for ggml's graph scheduler")

    def _start_threads(self):
        cdef lib.ggml_threadpool_params pool
        lib.ggml_threadpool_params_init(&pool, self.threads)
        self.threadpool = (<lib.threadpool_new_t>cpu_function("ggml_threadpool_new"))(&pool)
        if self.threadpool == NULL:
            raise NoMemoryError(f"cannot start {self.threads} threads")
        cpu = self.handles[self.n_handles - 1]
        (<lib.ggml_backend_set_n_threads_t>cpu_function("ggml_backend_set_n_threads"))(cpu, self.threads)
        (<lib.cpu_set_threadpool_t>cpu_function("ggml_backend_cpu_set_threadpool"))(cpu, self.threadpool)

    cdef int check_open(self) except -1:
        if self.sched == NULL:
            raise ClosedError("this Backend is closed")
        return 0

    cdef lib.ggml_backend_buffer_type_t buffer_type(self, int device) noexcept:
        return lib.ggml_backend_get_default_buffer_type(self.handles[device])

    cdef lib.ggml_backend_buffer_type_t cpu_buffer_type(self) noexcept:
        return lib.ggml_backend_get_default_buffer_type(self.handles[self.n_handles - 1])

    def graph_bytes(self):
        """Bytes reserved on each device for the intermediate results of graphs: {device name: bytes}."""
        self.check_open()
        return {
            device.name: lib.ggml_backend_sched_get_buffer_size(self.sched, self.handles[i])
            for i, device in enumerate(self.devices)
        }

    def supports_flash_attention(self, int device, int64_t key_dim, int64_t value_dim, str dtype):
        """Whether a device has a one-pass attention kernel for heads of this size and keys of this type."""
        self.check_open()
        if not 0 <= device < len(self.devices):
            raise ConfigError(f"device is 0 to {len(self.devices) - 1}, got {device}")
        cdef lib.ggml_type kind = type_of(dtype)
        cdef lib.ggml_init_params params
        cdef int64_t q[4]
        cdef int64_t k[4]
        cdef int64_t v[4]
        cdef int64_t m[4]
        shape_to_ne((key_dim, 1, 1), lib.GGML_TYPE_F32, q)
        shape_to_ne((key_dim, 256, 1), kind, k)
        shape_to_ne((value_dim, 256, 1), kind, v)
        shape_to_ne((256, 1), lib.GGML_TYPE_F16, m)
        params.mem_size = lib.ggml_tensor_overhead() * 8
        params.mem_buffer = NULL
        params.no_alloc = True
        cdef lib.ggml_context *ctx = lib.ggml_init(params)
        if ctx == NULL:
            raise NoMemoryError("no memory for a trial operation")
        try:
            attention = lib.ggml_flash_attn_ext(
                ctx, lib.ggml_new_tensor(ctx, lib.GGML_TYPE_F32, 4, q), lib.ggml_new_tensor(ctx, kind, 4, k),
                lib.ggml_new_tensor(ctx, kind, 4, v), lib.ggml_new_tensor(ctx, lib.GGML_TYPE_F16, 4, m), 1.0, 0.0, 0.0)
            return bool(lib.ggml_backend_dev_supports_op(device_handle(self.devices[device]), attention))
        finally:
            lib.ggml_free(ctx)

    @property
    def closed(self):
        return self.sched == NULL

    def close(self):
        """Close every context, weight set and cache made on this backend, then free it. Safe to call twice."""
        if self.lock is None:  # __init__ refused its arguments
            return
        with self.lock:
            for member in list(self.members):
                member.close()
            self.allocated = None
            self._free()

    def _free(self):
        cdef lib.ggml_backend_sched_t sched = self.sched
        cdef int i
        self.sched = NULL
        if sched != NULL:
            lib.ggml_backend_sched_free(sched)
        for i in range(self.n_handles):
            lib.ggml_backend_free(self.handles[i])
        self.n_handles = 0
        if self.threadpool != NULL:
            (<lib.threadpool_free_t>cpu_function("ggml_threadpool_free"))(self.threadpool)
            self.threadpool = NULL

    def __dealloc__(self):
        # Members keep their Backend alive, so nothing of it is in use here.
        if self.sched != NULL or self.n_handles:
            self._free()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        state = "closed" if self.sched == NULL else f"{', '.join(d.name for d in self.devices)}; {self.threads} threads"
        return f"Backend({state})"
