"""Workers: devices of other processes and machines, used through ggml's RPC backend.

ggml's client does not talk to the worker itself, but to a relay in this process (csrc/rpc/relay.h), so that a worker
that is gone is an error and not the end of the process. Signals are blocked where ggml starts threads of its own: it
takes a call that a signal has interrupted for the end of a connection.
"""

import os
from dataclasses import replace

cimport cython
from libc.stdint cimport uint8_t, uint64_t, uintptr_t
from posix.signal cimport sigfillset, sigset_t
from posix.unistd cimport getpid

from ollama_engine.errors import DeviceError, DeviceLostError, NoMemoryError
from ollama_engine.ml.device.device import devices as local_devices
from ollama_engine.ml.device.worker_address import WorkerAddress

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.device.device cimport device_handle
from ollama_engine.ml.ggml.liblimiteddevice cimport oe_limited_device
from ollama_engine.ml.ggml.librelay cimport (
    OE_RELAY_GONE, OE_RELAY_SILENT, OE_RELAY_WORKS, OE_RELAY_WRONG, oe_relay_count, oe_relay_counts, oe_relay_fault,
    oe_relay_free, oe_relay_give_up, oe_relay_misled, oe_relay_new,
)

cdef extern from "<stdio.h>" nogil:
    ctypedef struct FILE
    FILE *stderr
    int fprintf(FILE *stream, const char *format, ...)

cdef extern from "<signal.h>" nogil:
    int SIG_SETMASK
    int pthread_sigmask(int how, const sigset_t *set, sigset_t *before)

# How long a worker may compute without sending anything.
PATIENCE_SECONDS = 600.0
# How long it may take for anything else: all that it does then is to fill, copy, read and write memory.
QUIET_SECONDS = 60.0

cdef dict _FAULTS = {
    OE_RELAY_GONE: "is gone: its connection has ended",
    OE_RELAY_SILENT: "does not answer any more",
    OE_RELAY_WRONG: "has sent what ggml's protocol does not say",
}


cdef lib.ggml_backend_t start_device(lib.ggml_backend_dev_t device) except? NULL:
    """A device's backend, or NULL where it cannot be started."""
    cdef sigset_t everything, before
    cdef lib.ggml_backend_t started
    with nogil:
        sigfillset(&everything)
        pthread_sigmask(SIG_SETMASK, &everything, &before)
        started = lib.ggml_backend_dev_init(device, NULL)
        pthread_sigmask(SIG_SETMASK, &before, NULL)
    return started


cdef void *_rpc_function(const char *name) except NULL:
    """A function of ggml's RPC backend, which a portable build loads at run time."""
    cdef size_t i
    cdef void *function = NULL
    local_devices()  # loads the backends
    for i in range(lib.ggml_backend_reg_count()):
        registry = lib.ggml_backend_reg_get(i)
        if <bytes>lib.ggml_backend_reg_name(registry) == b"RPC":
            function = lib.ggml_backend_reg_get_proc_address(registry, name)
    if function == NULL:
        raise DeviceError("this build has no workers' backend", advice=["build with OLLAMA_ENGINE_RPC=ON"])
    return function


cdef class Worker:
    """A connection to one worker, which serves no other program until `close`. Raises DeviceError where there is none.

    `patience`: seconds that it may be silent while something is computed, `quiet`: while nothing is. None takes
    PATIENCE_SECONDS and QUIET_SECONDS.
    """

    def __init__(self, address, *, patience=None, quiet=None):
        if self.relay != NULL:
            raise DeviceError("a Worker is initialised once")
        if not isinstance(address, WorkerAddress):
            raise TypeError(f"address must be a WorkerAddress, got {type(address).__name__}")
        from ollama_engine.ml.workers.relay_ports import PORTS
        from ollama_engine.ml.workers.worker_client import WorkerClient

        _rpc_function(b"ggml_backend_rpc_add_server")
        self.address = address
        self.pid = getpid()
        patience = PATIENCE_SECONDS if patience is None else patience
        quiet = QUIET_SECONDS if quiet is None else quiet
        client = WorkerClient(address)
        try:
            devices = client.devices()
            if not devices:
                raise DeviceError(f"the worker at {address} has no devices")
            known_as = (address, client.kept(devices))
            self.ports = PORTS
            self.connect(client, PORTS.listen(known_as), patience, quiet)
        finally:
            client.close()
        try:
            self.devices = self.describe(devices)
            self.check()
            self.known_as = known_as
        except BaseException:
            self.close()
            raise

    cdef int connect(self, client, listener, patience, quiet) except -1:
        """Start the relay, at whose port of loopback ggml finds the worker."""
        hello = client.hello
        cdef const uint8_t *said = hello
        cdef int computing = int(patience * 1000)
        cdef int otherwise = int(quiet * 1000)
        cdef int listening, connected
        self.port = listener.getsockname()[1]
        listening, connected = listener.detach(), client.detach()
        self.relay = oe_relay_new(listening, connected, said, computing, otherwise)
        if self.relay == NULL:
            raise DeviceError(f"no thread for the connection to {self.address}")
        return 0

    cdef tuple describe(self, devices):
        """The devices, as ggml knows them."""
        cdef lib.rpc_add_server_t add = <lib.rpc_add_server_t>_rpc_function(b"ggml_backend_rpc_add_server")
        cdef lib.ggml_backend_reg_t registry
        cdef sigset_t everything, before
        endpoint = f"127.0.0.1:{self.port}".encode()
        cdef const char *where = endpoint
        with nogil:
            sigfillset(&everything)
            pthread_sigmask(SIG_SETMASK, &everything, &before)
            registry = add(where)
            pthread_sigmask(SIG_SETMASK, &before, NULL)
        self.check()
        if registry == NULL or lib.ggml_backend_reg_dev_count(registry) != <size_t>len(devices):
            raise DeviceError(f"the devices of the worker at {self.address} changed meanwhile; try again")
        return tuple([
            replace(device, handle=<uintptr_t>lib.ggml_backend_reg_dev_get(registry, device.index))
            for device in devices
        ])

    cdef int check(self) except -1:
        """Raise DeviceLostError where what ggml was given since does not come from the worker."""
        cdef int fault
        with cython.critical_section(self):
            if self.relay == NULL or self.pid != getpid():
                return 0
            fault = oe_relay_fault(self.relay)
        if fault != OE_RELAY_WORKS:
            raise DeviceLostError(
                f"the worker at {self.address} {_FAULTS.get(fault, 'was given up')}",
                advice=["see that it runs (ollama-engine worker), and load the model again"],
            )
        return 0

    @property
    @cython.critical_section
    def lost(self):
        """Whether what is computed there cannot be used any more."""
        return self.relay == NULL or oe_relay_fault(self.relay) != OE_RELAY_WORKS

    def memory(self):
        """Free and all bytes of each device, asked now. Raises DeviceLostError."""
        cdef lib.ggml_backend_dev_props props
        cdef lib.ggml_backend_dev_t handle
        cdef sigset_t everything, before
        sizes = []
        for device in self.devices:
            handle = device_handle(device)
            with nogil:
                sigfillset(&everything)
                pthread_sigmask(SIG_SETMASK, &everything, &before)
                lib.ggml_backend_dev_get_props(handle, &props)
                pthread_sigmask(SIG_SETMASK, &before, NULL)
            self.check()
            sizes.append((props.memory_free, props.memory_total))
        return sizes

    @cython.critical_section
    def counts(self):
        """Counts of the connection since it was made: {"messages", "round_trips", "bytes_sent", ...}."""
        cdef oe_relay_counts counts
        if self.relay == NULL:
            return {}
        counts = oe_relay_count(self.relay)
        return {"messages": counts.messages, "round_trips": counts.round_trips, "graphs": counts.graphs,
                "bytes_sent": counts.bytes_sent, "bytes_received": counts.bytes_received}

    @cython.critical_section
    def give_up(self):
        """Have calls that wait for the worker return; what they give cannot be used."""
        if self.relay != NULL and self.pid == getpid():
            oe_relay_give_up(self.relay)

    def close(self):
        """End the connection; the worker frees what it held. Safe to call twice."""
        cdef oe_relay *relay
        with cython.critical_section(self):
            relay = self.relay
            self.relay = NULL
        if relay != NULL and self.pid == getpid():
            if self.known_as is not None and not oe_relay_misled(relay):
                self.ports.give_back(self.port, self.known_as)
            oe_relay_free(relay)

    def __dealloc__(self):
        if self.relay != NULL and self.pid == getpid():
            oe_relay_free(self.relay)


def weights_hash(const uint8_t[::1] data not None):
    """The number by which ggml's workers keep weights: FNV-1a with 64 bits (isthe.com/chongo/tech/comp/fnv)."""
    cdef uint64_t hashed = 0xcbf29ce484222325
    cdef uint64_t prime = 0x100000001b3
    cdef Py_ssize_t i
    with nogil:
        for i in range(data.shape[0]):
            hashed = (hashed ^ data[i]) * prime
    return hashed


cdef void _reason_of_end(const char *message) noexcept nogil:
    fprintf(stderr, b"%s\nollama_engine: a program has sent what cannot be computed here, or a device has failed: see "
                    b"the line above, and those before it\n", message)


def serve_devices(str host not None, int port, devices, int threads, cache=None, memory=None, connections=None):
    """Serve devices of this machine to one program after the other; returns only where that cannot begin.

    `host` is an IPv4 address. `cache`: a folder that keeps large weights, so that a program need not send them again.
    `memory`: most bytes of each device that a program gets; None for all. `connections`: descriptor of a Unix socket
    that connections come over, instead of listening (csrc/rpc/handed_connections.c). ggml ends this process where a
    program sends what it cannot compute, or a device fails; standard error says why.
    """
    cdef lib.rpc_serve_t start = <lib.rpc_serve_t>_rpc_function(b"ggml_backend_rpc_start_server")
    cdef lib.ggml_backend_dev_t handles[16]
    cdef size_t limit = 0 if memory is None else memory
    cdef size_t n = 0
    endpoint = f"{host}:{port}".encode()
    cdef const char *where = endpoint
    folder = None if cache is None else os.fsencode(cache)
    cdef const char *kept = NULL
    if folder is not None:
        kept = folder
    for device in tuple(devices)[:16]:
        handles[n] = device_handle(device)
        if memory is not None:
            handles[n] = oe_limited_device(handles[n], limit)
            if handles[n] == NULL:
                raise NoMemoryError("no memory to describe a device")
        n += 1
    lib.ggml_set_abort_callback(_reason_of_end)
    os.environ["OE_RPC_CONNECTIONS"] = "" if connections is None else str(int(connections))
    with nogil:
        start(where, kept, threads, n, handles)
