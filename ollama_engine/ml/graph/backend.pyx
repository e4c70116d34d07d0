"""Backend: the devices, threads and graph scheduler that one engine computes with.

A Backend closes everything that was made on it (contexts, weights, caches) before itself. Two backends of one process
share only the CPUs: each has its own thread pool, and they compute in turns when their threads together outnumber the
CPUs (csrc/threads/cpu_gate.h). A backend does not survive a fork: the child process has none of its threads.

`lock` is held while the scheduler works. It is reentrant, so `busy` distinguishes a call from inside ggml (for example
from a log handler) from a call that waited for the lock.
"""

import logging
import threading
import weakref

cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport int64_t
from libc.stdlib cimport free, malloc
from posix.unistd cimport getpid

from ollama_engine.errors import ClosedError, ComputeError, ConfigError, DeviceError, NoMemoryError
from ollama_engine.ml.device import placement
from ollama_engine.ml.device.device import devices as all_devices
from ollama_engine.ml.device.device_info import system_line
from ollama_engine.ml.device.hostmem import available_bytes

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.device.device cimport cpu_library_function, device_handle
from ollama_engine.ml.ggml.libcompute cimport oe_compute_job
from ollama_engine.ml.graph.graph_walk cimport work_of_device
from ollama_engine.ml.threads.launcher cimport Launcher
from ollama_engine.ml.graph.tensor cimport root_of
from ollama_engine.ml.threads.thread_pools cimport ThreadPools
from ollama_engine.ml.graph.types cimport whole
from ollama_engine.ml.graph.uploads cimport Uploads
from ollama_engine.ml.graph.window cimport Scheduler
from ollama_engine.ml.workers.workers cimport Worker, start_device

log = logging.getLogger(__name__)

DEFAULT_MAX_NODES = 8192
MAX_NODES_LIMIT = 65536
MAX_DEVICES = DEVICE_SLOTS
# Room for 60 tensor descriptions of 336 bytes each, and ggml's tables.
SCHEDULER_BYTES_PER_NODE = 24576


cdef class Backend:
    """Devices and threads for one engine.

    `params` is a `BackendParams`; its threads take effect here, and its options of GPUs where they exclude some.
    `max_nodes` bounds the tensors of one graph. `choose` is called with the devices that may be used, the CPU last, and
    returns those that are; None uses all. `kernels` is a `KernelChoice`; None is the table's. Raises ConfigError,
    DeviceError, NoMemoryError, and what `choose` raises.
    """

    def __cinit__(self, *args, **options):
        self.launcher = Launcher()

    def __init__(self, params, *, max_nodes=DEFAULT_MAX_NODES, choose=None, kernels=None):
        cdef int64_t nodes = whole(max_nodes)
        if self.lock is not None:
            raise ConfigError("a Backend is initialised once")
        if not isinstance(params, placement.BackendParams):
            raise TypeError(f"params must be BackendParams, got {type(params).__name__}")
        if not 16 <= nodes <= MAX_NODES_LIMIT:
            raise ConfigError(f"max_nodes is 16 to {MAX_NODES_LIMIT}, got {max_nodes}")
        self.params, self.kernels = params, kernels
        self.max_nodes, self.pid = nodes, getpid()
        self.lock = threading.RLock()
        self.members = weakref.WeakValueDictionary()  # by address: its list is taken at once, that of a WeakSet is not
        self.workers = ()
        self.threads = placement.choose_threads(params.threads)
        try:
            self._connect(choose)
            self._start()
        except BaseException:
            self.close()
            raise
        log.debug("backend: %s", system_line(self.devices, self.threads),
                  extra={"devices": self.devices, "threads": self.threads})

    cdef int _connect(self, choose) except -1:
        """Connect to workers, and choose devices of this machine and theirs."""
        devices = all_devices()
        for address in placement.worker_addresses(self.params):
            worker = Worker(address)
            self.workers += (worker,)
            devices += worker.devices
        self.devices = placement.choose_devices(devices, self.params)
        if choose is not None:
            self.devices = tuple(choose(self.devices))
        if len(self.devices) > MAX_DEVICES:
            raise ConfigError(f"{len(self.devices)} devices are too many, ggml takes {MAX_DEVICES}; use main_gpu")
        return 0

    cdef int _start(self) except -1:
        cdef lib.ggml_backend_t handle
        for device in self.devices:
            handle = start_device(device_handle(device))
            if handle == NULL:
                raise DeviceError(f"device {device.name} ({device.description}) cannot be started")
            self.handles[self.n_handles] = handle
            self.n_handles += 1
        self.cpu_device = lib.ggml_backend_get_device(self.handles[self.n_handles - 1])
        self.cpu_memory = lib.ggml_backend_get_default_buffer_type(self.handles[self.n_handles - 1])
        self.plan_graph = <lib.graph_plan_t>cpu_library_function("ggml_graph_plan")
        self.uploads = Uploads()
        self.pools = ThreadPools.__new__(ThreadPools)
        self.pools.start(self.handles[self.n_handles - 1], self.threads, self.n_handles == 1)
        self.renew_scheduler()
        return 0

    cdef lib.ggml_backend_sched_t _new_scheduler(self) except NULL:
        # ggml counts copies between devices among the nodes, and ends the process where its table is full.
        cdef size_t size = self.max_nodes + 64 if self.n_handles == 1 else 2 * self.max_nodes
        # ggml does not check whether it got this memory (mostly address space), so try the allocation first.
        cdef void *probe = malloc(size * SCHEDULER_BYTES_PER_NODE)
        if probe == NULL:
            raise NoMemoryError(
                f"no address space to schedule graphs of {self.max_nodes} nodes; let the process have more (ulimit -v)"
            )
        free(probe)
        cdef lib.ggml_backend_sched_t made
        with nogil:
            made = lib.ggml_backend_sched_new(self.handles, NULL, self.n_handles, size, False, True)
        return made

    cdef int enrol(self, member) except -1:
        """Have `close` close this, too."""
        self.members[<size_t><void *>member] = member
        return 0

    cdef list live_members(self):
        return [member for member in [ref() for ref in self.members.valuerefs()] if member is not None]

    cdef int check_open(self) except -1:
        if self.sched == NULL:
            raise ClosedError("this Backend is closed")
        if self.pid != getpid():
            raise ClosedError("this Backend was made before the process forked; make one in the child")
        return 0

    cdef int check_idle(self) except -1:
        """With `lock` held: refuse a call from inside ggml in this very thread."""
        if self.launcher.running:
            raise ComputeError("the backend is computing a graph that was started; wait() for it first")
        if self.busy is not None:
            raise ComputeError("the backend is computing in this thread; a log handler must not use it")
        return 0

    cdef int check_workers(self) except -1:
        """Raise DeviceLostError where a worker is gone, and so what its devices gave is no result."""
        for worker in self.workers:
            (<Worker>worker).check()
        return 0

    def check_devices(self):
        """Raise DeviceLostError where a worker is gone: what lay on its devices is lost."""
        self.check_workers()

    def give_up_devices(self):
        """Have a call that waits for a worker return at once, with DeviceLostError. From any thread."""
        for worker in self.workers:
            worker.give_up()

    cdef int pin_operations(self, lib.ggml_backend_sched_t sched, lib.ggml_cgraph *graph) noexcept:
        """Have the CPU run what ggml's scheduler would place wrongly. To be called after each reset of the scheduler.

        These are our own operations, which are functions of this process, whatever a device claims to run; and those
        that change an intermediate result in place, with what computes that result: ggml may place the two on different
        devices, and the second would then write to an address of the first one's memory.
        """
        cdef int i
        cdef lib.ggml_tensor *node
        cdef lib.ggml_tensor *root
        cdef lib.ggml_backend_t cpu = self.handles[self.n_handles - 1]
        if self.n_handles == 1:
            return 0
        for i in range(lib.ggml_graph_n_nodes(graph)):
            node = lib.ggml_graph_node(graph, i)
            root = root_of(node)
            if node.op == lib.GGML_OP_CUSTOM:
                lib.ggml_backend_sched_set_tensor_backend(sched, node, cpu)
            elif root != node and root.data == NULL and node.op in (lib.GGML_OP_SET_ROWS, lib.GGML_OP_CPY):
                lib.ggml_backend_sched_set_tensor_backend(sched, node, cpu)
                lib.ggml_backend_sched_set_tensor_backend(sched, root, cpu)
        return 0

    cdef int adjust_threads(self, int64_t work, int64_t of_cpu) except -1:
        """With `lock` held: choose how many threads compute a graph with so much work in an operation, or, beside other
        devices, so much of the CPU's.
        """
        if self.launcher.running or self.busy is not None:
            return 0
        return self.pools.adjust(work) if self.n_handles == 1 else self.pools.share(of_cpu < SMALL_WORK)

    cdef int check_unmapped(self) except -1:
        """Refuse to change the scheduler's memory while Python code is looking at it."""
        if self.scheduler.open_windows:
            raise ComputeError("a tensor of this backend is mapped; leave the `with tensor.mapped()` block first")
        return 0

    cdef int check_free(self) except -1:
        """With `lock` held: refuse to use the scheduler's memory while anything else does."""
        self.check_idle()
        return self.check_unmapped()

    cdef int launch(self, object context, oe_compute_job *job, int64_t meanwhile, int64_t of_cpu) except -1:
        """With `lock` held: begin to compute a graph. `meanwhile`: see Launcher.start; `of_cpu`: see adjust_threads."""
        if self.n_handles > 1 and not self.workers and of_cpu < SMALL_WORK:
            self.busy = context  # ggml may log
            self.launcher.queue(job)
        else:
            self.launcher.start(job, meanwhile, self.pools.spare_cpu())
        self.busy = context
        return 0

    cdef int64_t work_of_cpu(self, lib.ggml_cgraph *graph) noexcept:
        """What the CPU computes of a graph that has memory: see work_of_device."""
        return work_of_device(graph, self.sched, self.handles[self.n_handles - 1])

    cdef int forget_graph(self) except -1:
        """With `lock` held: the scheduler's memory belongs to no context from now on."""
        self.allocated = None
        self.uploads.forget()
        if self.sched != NULL:
            lib.ggml_backend_sched_reset(self.sched)
        return 0

    cdef int start_plan(self) except -1:
        """With `lock` held: planning may free the memory that there is, unless an array over it is still alive."""
        if self.scheduler.windows:
            return self.renew_scheduler()
        self.planned = 0
        return self.forget_graph()

    cdef int renew_scheduler(self) except -1:
        """Replace the scheduler: after a failed allocation it holds plans without memory."""
        cdef Scheduler scheduler = Scheduler.__new__(Scheduler)
        scheduler.pid = self.pid
        scheduler.ptr = self._new_scheduler()
        self.scheduler = scheduler
        self.sched = scheduler.ptr
        self.allocated = None
        self.planned = 0
        self.memory_number += 1
        return self.note_graph_sizes()

    cdef lib.ggml_backend_sched_t measuring_scheduler(self) except NULL:
        """A second scheduler, which plans and never allocates: measuring in the first would take away its memory."""
        if self.measurer == NULL:
            self.measurer = self._new_scheduler()
        return self.measurer

    cdef int give_up(self) except -1:
        """Close without freeing: after an allocation failed inside a computation, ggml would free twice."""
        self.n_handles = 0
        if self.pools is not None:
            self.pools.abandon()
        self.launcher.forget_worker()
        if self.scheduler is not None:
            self.scheduler.ptr = NULL
        self.sched = NULL
        self.measurer = NULL
        self.allocated = None
        return 0

    cdef lib.ggml_backend_buffer_type_t buffer_type(self, int device) noexcept:
        return lib.ggml_backend_get_default_buffer_type(self.handles[device])

    @property
    def threads_in_use(self):
        """How many threads compute now: `threads`, or fewer while the machine is busy with other work."""
        return self.threads if self.pools is None or self.n_handles > 1 else self.pools.in_use

    def graph_bytes(self):
        """Bytes that intermediate results have on each device: {device name: bytes}. Waits for no computation."""
        self.check_open()
        with cython.critical_section(self):
            return dict(self.graph_sizes)

    cdef int note_graph_sizes(self) except -1:
        """With `lock` held: keep what `graph_bytes` says, after the scheduler's memory may have changed."""
        taken = [lib.ggml_backend_sched_get_buffer_size(self.sched, self.handles[i]) for i in range(self.n_handles)]
        sizes = {device.name: nbytes for device, nbytes in zip(self.devices, taken)}
        if sizes != self.graph_sizes:  # ggml replaces the memory of a device where a graph needs more
            with cython.critical_section(self):
                self.graph_sizes, self.memory_number = sizes, self.memory_number + 1
        return 0

    cdef size_t held_by_host(self) noexcept:
        """Bytes that the scheduler holds of the host's memory."""
        return lib.ggml_backend_sched_get_buffer_size(self.sched, self.handles[self.n_handles - 1])

    cdef size_t more_work(self, lib.ggml_cgraph *graph) noexcept:
        """With the lock held: bytes that the CPU's kernels need beside the results of this graph, beyond `work`.

        ggml takes them when it computes. Where other devices compute a part of the graph, it is an upper bound.
        """
        cdef size_t needed = self.plan_graph(graph, self.threads, self.pools.all.ptr).work_size
        return needed - self.work if needed > self.work else 0

    cdef int refuse_more_than_available(self, lib.ggml_cgraph *graph, const size_t *sizes) except -1:
        """With `lock` held: raise NoMemoryError where a graph whose results take `sizes` on devices does not fit."""
        if sizes[self.n_handles - 1] + self.more_work(graph) > self.held_by_host() + available_bytes():
            needed = ", ".join(f"{d.name} {sizes[i] >> 20} MiB" for i, d in enumerate(self.devices))
            raise NoMemoryError(f"a graph of {lib.ggml_graph_n_nodes(graph)} operations needs {needed}; "
                                f"{available_bytes() >> 20} MiB of memory are available")
        return 0

    def work_bytes(self):
        """Bytes of scratch memory that the CPU's kernels take for the largest graph that was planned."""
        self.check_open()
        return self.work

    @property
    def closed(self):
        return self.sched == NULL

    def close(self):
        """Close every context, weight set and cache made on this backend, then free it. Safe to call twice."""
        if self.lock is None:  # __init__ refused its arguments
            return
        if self.pid != getpid():
            self.give_up()
            return
        with self.lock:
            self.give_up_devices()  # they free what they hold when the connection ends, and need not be asked
            if self.launcher.running:
                self.busy.abandon()
            self.check_idle()
            for member in self.live_members():
                member.close()
            self.allocated = None
            self._free()

    cdef int _free(self) except -1:
        cdef int i
        if self.launcher is not None:
            self.launcher.free_worker()
        self.sched = NULL
        self.scheduler = None  # an array over its memory keeps it
        if self.measurer != NULL:
            with nogil:
                lib.ggml_backend_sched_free(self.measurer)
            self.measurer = NULL
        if self.uploads is not None:
            self.uploads.close()
        with nogil:
            for i in range(self.n_handles):
                lib.ggml_backend_free(self.handles[i])
        self.n_handles = 0
        if self.pools is not None:
            self.pools.close()
        for remote in self.workers or ():
            remote.close()
        return 0

    def __dealloc__(self):
        # Members keep their Backend alive, so nothing of it is in use here.
        if self.pid == getpid():
            self._free()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.close()

    def __repr__(self):
        state = "closed" if self.sched == NULL else f"{', '.join(d.name for d in self.devices)}; {self.threads} threads"
        return f"Backend({state})"
