from ollama_engine.ml.ggml cimport libggml as lib


cdef lib.ggml_backend_dev_t device_handle(object device) except NULL
cdef void *cpu_function(const char *name) except NULL
cdef void *cpu_library_function(const char *name) except NULL
