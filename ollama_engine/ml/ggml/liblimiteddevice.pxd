# csrc/rpc/limited_device.h

from ollama_engine.ml.ggml cimport libggml as lib


cdef extern from "rpc/limited_device.h" nogil:
    lib.ggml_backend_dev_t oe_limited_device(lib.ggml_backend_dev_t device, size_t limit)
