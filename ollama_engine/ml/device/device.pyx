"""The devices that this process can compute on.

ggml keeps one registry of backends for the whole process; it is filled on the first call of `devices()`, never on
import. What was found is logged once, after the backends are loaded, so that the CPU features named are those of the
variant that really runs.
"""

import logging
import os
import threading

from libc.stdio cimport fprintf, stderr
from libc.stdint cimport uintptr_t

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.device.device_info import Device, number_by_library

log = logging.getLogger(__name__)

cdef extern from *:
    """
    #include <Python.h>
    #if PY_VERSION_HEX >= 0x030d0000
    #define oe_is_finalizing() Py_IsFinalizing()
    #else
    #define oe_is_finalizing() _Py_IsFinalizing()
    #endif
    """
    bint oe_is_finalizing() nogil
    bint Py_IsInitialized() nogil


cdef extern from "<dlfcn.h>" nogil:
    int RTLD_NOW
    int RTLD_NOLOAD
    ctypedef struct Dl_info:
        const char *dli_fname
    int dladdr(const void *address, Dl_info *info)
    void *dlopen(const char *path, int mode)
    void *dlsym(void *library, const char *name)
    int dlclose(void *library)

cdef extern from "<stdlib.h>" nogil:
    int setenv(const char *name, const char *value, int overwrite)


cdef class _Registry:
    """Loads ggml's backends once and describes their devices."""
    cdef object lock
    cdef bint loaded

    def __cinit__(self):
        # Reentrant: loading logs, and a log handler may ask for the devices.
        self.lock = threading.RLock()
        self.loaded = False

    cdef int load(self) except -1:
        with self.lock:
            if self.loaded:
                return 0
            self.loaded = True
            lib.ggml_log_set(_forward_log, NULL)
            lib.ggml_set_abort_callback(_last_words)
            folder = os.fsencode(_library_folder())
            # Only a portable build has backends to load; without any file there, this finds what is linked in.
            lib.ggml_backend_load_all_from_path(folder)
            if any([device.library == "CUDA" for device in devices()]):
                avoid_overlap()
        for device in devices():
            log.info("device %s: %s, %.1f GiB, features: %s", device.name, device.description,
                     device.memory_total / 2**30, " ".join(f"{k}={v}" for k, v in device.features.items()) or "none",
                     extra={"device": device})
        return 0


cdef _Registry _REGISTRY = _Registry()


def avoid_overlap():
    """Keep kernels of ggml's for CUDA from starting before those in front of them have ended, unless the user's
    environment says otherwise.

    On Hopper, with ggml 0.25.3, that makes wrong numbers: a picture's circle became a triangle (docs/gpu.md).
    """
    setenv("GGML_CUDA_PDL", "0", 0)


def _library_folder():
    package = os.path.realpath(__file__)
    for _ in __name__.split(".")[1:]:
        package = os.path.dirname(package)
    return os.path.join(package, "_lib")


cdef void _forward_log(lib.ggml_log_level level, const char *text, void *user_data) noexcept nogil:
    if level == lib.GGML_LOG_LEVEL_NONE or not Py_IsInitialized() or oe_is_finalizing():
        return
    with gil:
        _log(level, text)


cdef int _log(lib.ggml_log_level level, const char *text) noexcept:
    levels = {lib.GGML_LOG_LEVEL_ERROR: logging.ERROR, lib.GGML_LOG_LEVEL_WARN: logging.WARNING}
    try:
        message = (<bytes>text).decode("utf-8", "replace").rstrip()
        if message.strip(". "):
            logging.getLogger("ollama_engine.ggml").log(levels.get(level, logging.DEBUG), "%s", message)
    except Exception:  # a broken log handler must not unwind into ggml
        return 0
    return 0


cdef void _last_words(const char *message) noexcept nogil:
    fprintf(stderr, b"%s\nollama_engine: ggml gave up on the line above. No call from Python should lead there: "
                    b"please report it.\n", message)


cdef lib.ggml_backend_dev_t device_handle(object device) except NULL:
    return <lib.ggml_backend_dev_t><uintptr_t>device.handle


cdef void *cpu_function(const char *name) except NULL:
    """A function of the CPU backend's library by name; a portable build has several of those libraries."""
    cdef void *function = NULL
    cdef size_t i
    for i in range(lib.ggml_backend_dev_count()):
        device = lib.ggml_backend_dev_get(i)
        if lib.get_dev_type(device) == lib.GGML_BACKEND_DEVICE_TYPE_CPU:
            function = lib.ggml_backend_reg_get_proc_address(lib.ggml_backend_dev_backend_reg(device), name)
    if function == NULL:
        raise RuntimeError(f"the CPU backend has no {name.decode()}")
    return function


cdef void *cpu_library_function(const char *name) except NULL:
    """Any function that the CPU backend's library exports; `cpu_function` finds only those that ggml lists."""
    cdef Dl_info info
    cdef void *library = NULL
    cdef void *function = NULL
    if dladdr(cpu_function(b"ggml_threadpool_new"), &info):
        library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD)
    if library != NULL:
        function = dlsym(library, name)
        dlclose(library)  # it stays: ggml has loaded it
    if function == NULL:
        raise RuntimeError(f"the library of the CPU backend exports no {name.decode()}")
    return function


def devices():
    """Every device of this machine that the build supports, in ggml's order, GPUs before the CPU."""
    _REGISTRY.load()
    cdef size_t i
    cdef list listed = []
    for i in range(lib.ggml_backend_dev_count()):
        device = _describe(lib.ggml_backend_dev_get(i))
        if device is not None:
            listed.append(device)
    listed.sort(key=lambda d: d.kind == "cpu")
    return number_by_library(listed)


cdef object _describe(lib.ggml_backend_dev_t handle):
    cdef lib.ggml_backend_dev_props props
    lib.ggml_backend_dev_get_props(handle, &props)
    kinds = {lib.GGML_BACKEND_DEVICE_TYPE_CPU: "cpu", lib.GGML_BACKEND_DEVICE_TYPE_GPU: "gpu",
             lib.GGML_BACKEND_DEVICE_TYPE_IGPU: "igpu", lib.GGML_BACKEND_DEVICE_TYPE_ACCEL: "accel"}
    kind = kinds.get(props.type)
    if kind is None:
        return None
    registry = lib.ggml_backend_dev_backend_reg(handle)
    return Device(
        name=(<bytes>props.name).decode(), kind=kind, library=(<bytes>lib.ggml_backend_reg_name(registry)).decode(),
        index=0,
        description=(<bytes>props.description).decode("utf-8", "replace").strip(),
        memory_total=props.memory_total, memory_free=props.memory_free,
        id=(<bytes>props.device_id).decode() if props.device_id != NULL else None,
        features=_features(registry), handle=<uintptr_t>handle,
    )


cdef dict _features(lib.ggml_backend_reg_t registry):
    cdef lib.ggml_backend_get_features_t get = <lib.ggml_backend_get_features_t>(
        lib.ggml_backend_reg_get_proc_address(registry, "ggml_backend_get_features"))
    cdef dict found = {}
    if get == NULL:
        return found
    cdef lib.ggml_backend_feature *feature = get(registry)
    while feature != NULL and feature.name != NULL:
        found[(<bytes>feature.name).decode()] = (<bytes>feature.value).decode()
        feature += 1
    return found


def ggml_version():
    """Version of the vendored ggml, such as "0.25.3"."""
    return (<bytes>lib.ggml_version()).decode()
