"""Windows: read-only views of memory for numpy. While a window is open, nothing may change the memory; while an array
over it is alive, nothing may free it."""

cimport cython
from cpython.buffer cimport PyBuffer_FillInfo

from ollama_engine.errors import ClosedError


cdef class Memory:
    """Base of what owns an allocation, freed with the last reference. It counts the windows that refer to it."""


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
            self.memory.windows -= 1

    cdef void end(self) noexcept:
        """Stop protecting the memory: it may change from now on."""
        self.memory.open_windows -= self.is_open
        self.is_open = False


cdef Window window_over(Memory memory, const void *data, size_t size):
    cdef Window window = Window.__new__(Window)
    window.memory = memory
    window.data = data
    window.size = size
    window.is_open = True
    memory.windows += 1
    memory.open_windows += 1
    return window


cdef class Mapping:
    """What `Tensor.mapped` returns: a context manager that yields the array."""

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
