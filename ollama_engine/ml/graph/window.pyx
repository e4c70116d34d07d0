"""Memory that is freed with the last reference, and windows: read-only views of it for numpy. While a window is open,
nothing may change the memory; while an array over it is alive, nothing may free it."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo
from posix.unistd cimport getpid

from ollama_engine.errors import ClosedError

from ollama_engine.ml.ggml cimport libggml as lib


cdef class Memory:
    """Base of what owns an allocation, freed with the last reference. It counts the windows that refer to it."""


cdef class Scheduler(Memory):
    """ggml's scheduler and the memory that it computes in, freed with the last reference."""

    def __dealloc__(self):
        if self.ptr != NULL and self.pid == getpid():
            with nogil:
                lib.ggml_backend_sched_free(self.ptr)


cdef class Buffer:
    """One allocation of a device, freed with the last reference (in the process that made it)."""

    cdef char *base(self) noexcept:
        return <char *>lib.ggml_backend_buffer_get_base(self.buffer)

    def __dealloc__(self):
        if self.buffer != NULL and self.pid == getpid():
            with nogil:  # a worker may not answer at once
                lib.ggml_backend_buffer_free(self.buffer)


cdef Buffer new_buffer(lib.ggml_backend_buffer_t buffer):
    """`buffer` owned by a Python object, which frees it; None where ggml found no memory."""
    if buffer == NULL:
        return None
    cdef Buffer holder = Buffer.__new__(Buffer)
    holder.buffer = buffer
    holder.pid = getpid()
    return holder


@cython.no_gc  # no cycle leads through a Memory; cleared by the collector, it could not be counted down
cdef class Window:
    """Exports the bytes of a Memory. An array made over it keeps it alive."""

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.memory is None:
            raise BufferError("a Window is made by Tensor.mapped")
        PyBuffer_FillInfo(view, self, <void *>self.data, self.size, True, flags)

    def __dealloc__(self):
        if self.memory is not None:
            self.end()
            with cython.critical_section(self.memory):  # arrays are dropped by any thread
                self.memory.windows -= 1

    cdef void end(self) noexcept:
        """Stop protecting the memory: it may change from now on."""
        with cython.critical_section(self.memory):
            self.memory.open_windows -= self.is_open
            self.is_open = False


cdef Window window_over(Memory memory, const void *data, size_t size):
    cdef Window window = Window.__new__(Window)
    window.memory = memory
    window.data = data
    window.size = size
    window.is_open = True
    with cython.critical_section(memory):
        memory.windows += 1
        memory.open_windows += 1
    return window


cdef class Mapping:
    """The context manager of `Tensor.mapped`, which yields the array."""

    def __enter__(self):
        if self.array is None:
            raise ClosedError("this mapping has ended; call mapped() again")
        return self.array

    def __exit__(self, *exc):
        self.array = None
        if self.window is not None:
            self.window.end()

    def __del__(self):  # never entered, or dropped inside of a generator
        self.__exit__()


cdef Mapping mapping_of(object array, Window window):
    """`window`: what the array lies over, or None when it is a copy."""
    cdef Mapping mapping = Mapping.__new__(Mapping)
    array.flags.writeable = False
    mapping.array = array
    mapping.window = window
    return mapping
