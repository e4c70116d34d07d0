"""Graphs on several devices. Uploads: inputs that other devices than the CPU read, each step's sent in one piece.

ggml's scheduler keeps every input in the CPU's memory, and before a computation it waits for the device and copies one
after the other. Here an input that one other device alone reads lies on that device. All of them lie side by side at
the beginning of the memory for the graph. Their values are collected in host memory, pinned where the device has such
memory, and sent by one call that does not wait. Between them there is nothing that a step must keep.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset
from posix.unistd cimport getpid

from ollama_engine.errors import NoMemoryError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.tensor cimport Tensor, root_of

# Unused bytes between two inputs that are sent along, rather than beginning another piece.
cdef size_t GAP = 4096


cdef bint _is_view(lib.ggml_tensor *node) noexcept:
    return node.op in (lib.GGML_OP_NONE, lib.GGML_OP_VIEW, lib.GGML_OP_RESHAPE, lib.GGML_OP_PERMUTE,
                       lib.GGML_OP_TRANSPOSE)


cdef class Uploads:
    """The inputs of the graph that is allocated on one backend. Used with the backend's lock held."""

    def __cinit__(self):
        self.pid = getpid()

    cdef int look(self, lib.ggml_backend_sched_t sched, lib.ggml_cgraph *graph) except -1:
        """Find out which device computes which node. Leaves copies among the operands, and the scheduler not reset."""
        cdef int i
        lib.ggml_backend_sched_split_graph(sched, graph)
        self.computed_by = [<size_t>lib.ggml_backend_sched_get_tensor_backend(sched, lib.ggml_graph_node(graph, i))
                            for i in range(lib.ggml_graph_n_nodes(graph))]
        return 0

    cdef int assign(self, lib.ggml_backend_sched_t sched, lib.ggml_cgraph *graph, lib.ggml_backend_t cpu) except -1:
        """Have each input that one device alone reads, not the CPU, lie there."""
        cdef int i, j
        cdef lib.ggml_tensor *node
        cdef lib.ggml_tensor *root
        cdef dict readers = {}
        for i in range(lib.ggml_graph_n_nodes(graph)):
            node = lib.ggml_graph_node(graph, i)
            if _is_view(node):
                continue
            for j in range(lib.GGML_MAX_SRC):
                if node.src[j] == NULL:
                    continue
                root = root_of(node.src[j])
                if root.flags & lib.GGML_TENSOR_FLAG_INPUT and root.op == lib.GGML_OP_NONE:
                    readers.setdefault(<size_t>root, set()).add(self.computed_by[i])
        self.computed_by = None
        for address, devices in readers.items():
            if len(devices) == 1 and <size_t>cpu not in devices:
                lib.ggml_backend_sched_set_tensor_backend(
                    sched, <lib.ggml_tensor *><size_t>address, <lib.ggml_backend_t><size_t>devices.pop())
        return 0

    cdef int collect(self, lib.ggml_backend_sched_t sched, list inputs) except -1:
        """Take host memory for those of the inputs of an allocated graph that lie on other devices."""
        cdef lib.ggml_tensor *ptr
        cdef lib.ggml_tensor *first = NULL
        cdef size_t begin = 0, end = 0
        cdef Tensor t
        self.forget()
        places = []
        for t in inputs:
            ptr = t.ptr
            if ptr.data != NULL and ptr.buffer != NULL and not lib.ggml_backend_buffer_is_host(ptr.buffer):
                places.append((<size_t>ptr.buffer, <size_t>ptr.data, <size_t>ptr))
        for _, address, tensor in sorted(places):
            ptr = <lib.ggml_tensor *><size_t>tensor
            if first == NULL or ptr.buffer != first.buffer or <size_t>address > end + GAP:
                if first != NULL:
                    self.add_piece(lib.ggml_backend_sched_get_tensor_backend(sched, first), first, end - begin)
                first, begin = ptr, address
            end = <size_t>address + lib.ggml_nbytes(ptr)
        if first != NULL:
            self.add_piece(lib.ggml_backend_sched_get_tensor_backend(sched, first), first, end - begin)
        return 0

    cdef int add_piece(self, lib.ggml_backend_t backend, lib.ggml_tensor *first, size_t size) except -1:
        if self.n_pieces == MOST_PIECES:
            return 0  # the inputs of this piece are sent one by one
        cdef oe_piece *piece = &self.pieces[self.n_pieces]
        cdef lib.ggml_backend_buffer_type_t kind = NULL
        if piece.buffer == NULL or piece.capacity < size or piece.backend != backend:
            lib.ggml_backend_buffer_free(piece.buffer)
            piece.capacity = size + size // 4
            kind = lib.ggml_backend_dev_host_buffer_type(lib.ggml_backend_get_device(backend))
            piece.buffer = lib.ggml_backend_buft_alloc_buffer(
                lib.ggml_backend_cpu_buffer_type() if kind == NULL else kind, piece.capacity)
            if piece.buffer == NULL:
                raise NoMemoryError(f"no memory for {size} bytes of inputs on their way to a device")
            self.n_buffers = max(self.n_buffers, self.n_pieces + 1)
        piece.backend = backend
        piece.host = <char *>lib.ggml_backend_buffer_get_base(piece.buffer)
        memset(piece.host, 0, size)
        piece.cover = first[0]
        piece.cover.type = lib.GGML_TYPE_I8
        piece.cover.ne[0], piece.cover.nb[0] = size, 1
        for i in range(1, 4):
            piece.cover.ne[i], piece.cover.nb[i] = 1, size
        self.n_pieces += 1
        return 0

    cdef int forget(self) except -1:
        """The memory of the graph belongs to no inputs from now on."""
        self.n_pieces = 0
        return 0

    cdef char *host_of(self, lib.ggml_tensor *ptr) noexcept nogil:
        """Where the values of an input, or of a view of it, are collected; NULL for what is sent at once."""
        cdef lib.ggml_tensor *root = root_of(ptr)
        cdef char *data = <char *>ptr.data
        cdef char *base
        cdef int i
        if root.op != lib.GGML_OP_NONE or not root.flags & lib.GGML_TENSOR_FLAG_INPUT:
            return NULL  # a result may lie where an input was
        for i in range(self.n_pieces):
            base = <char *>self.pieces[i].cover.data
            if root.buffer == self.pieces[i].cover.buffer and base <= data < base + self.pieces[i].cover.ne[0]:
                return self.pieces[i].host + (data - base)
        return NULL

    cdef int send(self) noexcept:
        """Send what was collected, behind which the computation is put into the devices' queues."""
        cdef int i
        for i in range(self.n_pieces):
            lib.ggml_backend_tensor_set_async(self.pieces[i].backend, &self.pieces[i].cover, self.pieces[i].host, 0,
                                              self.pieces[i].cover.ne[0])
        return 0

    cdef int close(self) except -1:
        """Free the host memory; before the devices."""
        cdef int i
        self.forget()
        for i in range(self.n_buffers):
            if self.pid == getpid():
                lib.ggml_backend_buffer_free(self.pieces[i].buffer)
            self.pieces[i].buffer = NULL
        self.n_buffers = 0
        return 0

    def __dealloc__(self):
        self.close()


cdef class SavedOperands:
    """Operands of one ggml context as they were before the scheduler put copies in their place."""

    def __dealloc__(self):
        free(self.operands)

    cdef int restore(self, lib.ggml_context *ctx, int64_t tensors) except -1:
        """Put the operands back that are known, and note those of new ones of the context's `tensors`."""
        cdef int64_t n = 0
        cdef size_t width = lib.GGML_MAX_SRC * sizeof(lib.ggml_tensor *)
        cdef lib.ggml_tensor *t = lib.ggml_get_first_tensor(ctx)
        saved = <lib.ggml_tensor **>realloc(self.operands, tensors * width)
        if saved == NULL:
            raise NoMemoryError("no memory to note the operands of the graph")
        self.operands = saved
        while t != NULL:
            if n < self.tensors:
                memcpy(t.src, saved + n * lib.GGML_MAX_SRC, width)
            else:
                memcpy(saved + n * lib.GGML_MAX_SRC, t.src, width)
            n += 1
            t = lib.ggml_get_next_tensor(ctx, t)
        self.tensors = n
        return 0
