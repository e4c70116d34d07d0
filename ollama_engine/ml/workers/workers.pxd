from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.librelay cimport oe_relay


cdef lib.ggml_backend_t start_device(lib.ggml_backend_dev_t device) except? NULL


cdef class Worker:
    cdef readonly object address
    cdef readonly tuple devices
    cdef oe_relay *relay
    cdef int pid
    cdef int port
    cdef object ports
    cdef object known_as

    cdef int check(self) except -1
    cdef int connect(self, client, listener, patience, quiet) except -1
    cdef tuple describe(self, devices)
