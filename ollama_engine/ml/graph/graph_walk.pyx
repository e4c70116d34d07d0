"""Checks that ggml's memory planner omits. Without them it computes wrong results or aborts the process."""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from ollama_engine.errors import NoMemoryError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.graph.tensor cimport root_of

# What ggml allocates to plan a graph: `node_alloc`, `hash_node` and pointers for a node, and `tallocr_chunk`s.
cdef size_t PLAN_BYTES_PER_NODE = 1024
cdef size_t PLAN_BYTES = 256 * 1024


cdef class _Walk:
    """Numbers the tensors of one context in the order of their creation; tensors of other contexts get -1."""
    cdef char *first
    cdef size_t stride
    cdef int64_t count

    cdef int64_t number(self, lib.ggml_tensor *t) noexcept:
        if t == NULL or <char *>t < self.first:
            return -1
        cdef int64_t n = (<char *>t - self.first) // self.stride
        return n if n < self.count else -1


cdef _Walk _walk(lib.ggml_context *ctx):
    cdef _Walk walk = _Walk.__new__(_Walk)
    cdef lib.ggml_tensor *first = lib.ggml_get_first_tensor(ctx)
    # All tensors of a context lie one after the other, each with its header.
    walk.first = <char *>first
    walk.stride = lib.ggml_tensor_overhead()
    walk.count = 0
    if first != NULL:
        walk.count = (lib.ggml_used_mem(ctx) - (walk.first - <char *>lib.ggml_get_mem_buffer(ctx))) // walk.stride + 1
    return walk


cdef uint64_t _mix(uint64_t seed, uint64_t value) noexcept:
    """One step of FNV-1a, on whole words."""
    return (seed ^ value) * <uint64_t>1099511628211 ^ (seed >> 29)


cdef uint64_t _mix_place(uint64_t seed, lib.ggml_tensor *root) noexcept:
    """Whether a tensor has memory already, and of which device: results go where what they are computed from lies."""
    if root.buffer == NULL:
        return _mix(seed, root.data != NULL)
    seed = _mix(seed, <uint64_t><size_t>lib.ggml_backend_buffer_get_type(root.buffer))
    return _mix(seed, <uint64_t>lib.ggml_backend_buffer_get_usage(root.buffer))


cdef uint64_t _mix_tensor(_Walk walk, uint64_t seed, lib.ggml_tensor *t) noexcept:
    cdef int i
    seed = _mix(seed, walk.number(t))
    seed = _mix(seed, walk.number(t.view_src))
    seed = _mix(seed, <uint64_t>t.op << 32 | <uint64_t>t.type << 16 | <uint64_t>(t.flags & 0xff))
    seed = _mix_place(seed, root_of(t))
    for i in range(4):
        seed = _mix(seed, t.ne[i])
        seed = _mix(seed, t.nb[i])
    return seed


cdef uint64_t structure_of(lib.ggml_context *ctx, lib.ggml_cgraph *graph) except? 0:
    """A fingerprint of all that a memory plan depends on: operations, operands, shapes, and what has memory where.

    ggml reuses a plan for any graph with as many nodes that are no larger, even if another value must survive longer,
    or must lie on another device.
    """
    cdef _Walk walk = _walk(ctx)
    cdef uint64_t seed = <uint64_t>14695981039346656037
    cdef lib.ggml_tensor *node
    cdef int i, j
    for i in range(lib.ggml_graph_n_nodes(graph)):
        node = lib.ggml_graph_node(graph, i)
        seed = _mix_tensor(walk, seed, node)
        for j in range(lib.GGML_MAX_SRC):
            if node.src[j] != NULL:
                seed = _mix_tensor(walk, _mix(seed, j), node.src[j])
    return seed


cdef int64_t work_of_operation(lib.ggml_cgraph *graph) noexcept:
    """About how many products of two numbers an operation of the graph computes, on average."""
    cdef int64_t products = 0, operations = 0
    cdef lib.ggml_tensor *node
    for i in range(lib.ggml_graph_n_nodes(graph)):
        node = lib.ggml_graph_node(graph, i)
        operations += node.op not in (lib.GGML_OP_NONE, lib.GGML_OP_VIEW, lib.GGML_OP_RESHAPE, lib.GGML_OP_PERMUTE,
                                      lib.GGML_OP_TRANSPOSE)
        # Our own operations on bytes only round.
        if node.type == lib.GGML_TYPE_F32 and node.src[0] != NULL and node.op in (
                lib.GGML_OP_MUL_MAT, lib.GGML_OP_MUL_MAT_ID, lib.GGML_OP_CUSTOM):
            products += lib.ggml_nelements(node) * node.src[0].ne[0]
    return products // max(operations, 1)


cdef int64_t work_of_device(lib.ggml_cgraph *graph, lib.ggml_backend_sched_t sched, lib.ggml_backend_t device) noexcept:
    """About how many products of two numbers, or results, a device computes in a graph that has memory."""
    cdef int64_t work = 0
    cdef lib.ggml_tensor *node
    cdef int i
    for i in range(lib.ggml_graph_n_nodes(graph)):
        node = lib.ggml_graph_node(graph, i)
        if node.op in (lib.GGML_OP_NONE, lib.GGML_OP_VIEW, lib.GGML_OP_RESHAPE, lib.GGML_OP_PERMUTE,
                       lib.GGML_OP_TRANSPOSE) or lib.ggml_backend_sched_get_tensor_backend(sched, node) != device:
            continue
        products = node.op in (lib.GGML_OP_MUL_MAT, lib.GGML_OP_MUL_MAT_ID, lib.GGML_OP_CUSTOM)
        work += lib.ggml_nelements(node) * (node.src[0].ne[0] if products and node.src[0] != NULL else 1)
    return work


cdef int check_plan_memory(lib.ggml_cgraph *graph) except -1:
    """ggml ends the process where it gets no memory to plan a graph, so try the allocation first."""
    cdef int n_nodes = lib.ggml_graph_n_nodes(graph)
    cdef size_t size = PLAN_BYTES + n_nodes * PLAN_BYTES_PER_NODE
    cdef void *probe = malloc(size)
    if probe == NULL:
        raise NoMemoryError(f"no memory to plan a graph of {n_nodes} operations: {size} bytes")
    free(probe)
    return 0


cdef int most_alive(lib.ggml_context *ctx, lib.ggml_cgraph *graph) except -1:
    """An upper bound on the number of results and inputs that are alive at one time."""
    cdef _Walk walk = _walk(ctx)
    cdef int n_nodes = lib.ggml_graph_n_nodes(graph)
    cdef int *tables = <int *>calloc(2 * walk.count + n_nodes + 2, sizeof(int))
    if tables == NULL:
        raise NoMemoryError(f"no memory to look at a graph of {lib.ggml_graph_n_nodes(graph)} operations")
    cdef int *last = tables
    cdef int *children = tables + walk.count
    cdef int *ends = tables + 2 * walk.count
    _find_last_uses(walk, graph, last, children)
    alive = most = _count_leaves(walk, graph, last)
    cdef int64_t number
    cdef int i
    for number in range(walk.count):
        if last[number] > 0:
            ends[last[number] - 1] += 1
    for i in range(n_nodes):
        node = lib.ggml_graph_node(graph, i)
        if node.view_src == NULL and node.data == NULL:
            alive += 1
            most = max(most, alive)
        alive -= ends[i]
    free(tables)
    return most


cdef int _find_last_uses(_Walk walk, lib.ggml_cgraph *graph, int *last, int *children) noexcept:
    """last[t] = 1 + the node after which ggml may free t, n_nodes + 1 for never; 0 where t needs no memory."""
    cdef int n_nodes = lib.ggml_graph_n_nodes(graph)
    cdef int i, j
    cdef int64_t root
    cdef lib.ggml_tensor *node
    for i in range(n_nodes):
        node = lib.ggml_graph_node(graph, i)
        for j in range(lib.GGML_MAX_SRC):
            if node.src[j] != NULL and node.src[j] != node and walk.number(node.src[j]) >= 0:
                children[walk.number(node.src[j])] += 1
    for i in range(n_nodes):
        node = lib.ggml_graph_node(graph, i)
        for j in range(lib.GGML_MAX_SRC):
            _use(walk, node.src[j], i + 1, last)
        _use(walk, node, i + 1, last)
        root = walk.number(root_of(node))
        if root >= 0 and last[root] and (children[walk.number(node)] == 0 or node.flags & lib.GGML_TENSOR_FLAG_OUTPUT
                                         or root_of(node).flags & lib.GGML_TENSOR_FLAG_OUTPUT):
            last[root] = n_nodes + 1
    return 0


cdef int _use(_Walk walk, lib.ggml_tensor *t, int when, int *last) noexcept:
    if t == NULL:
        return 0
    cdef int64_t root = walk.number(root_of(t))
    if root >= 0 and root_of(t).data == NULL and last[root] < when:
        last[root] = when
    return 0


cdef int _count_leaves(_Walk walk, lib.ggml_cgraph *graph, int *last) noexcept:
    """Inputs of the graph: they have memory from the start."""
    cdef int64_t number
    cdef int leaves = 0
    for number in range(walk.count):
        if last[number] and (<lib.ggml_tensor *>(walk.first + number * walk.stride)).op == lib.GGML_OP_NONE:
            leaves += 1
    return leaves


cdef size_t bytes_unshared(lib.ggml_context *ctx) noexcept:
    """Bytes of all results that have no memory yet, if none reuses that of another."""
    cdef lib.ggml_tensor *t = lib.ggml_get_first_tensor(ctx)
    cdef size_t needed = 0
    while t != NULL:
        if t.view_src == NULL and t.data == NULL:
            needed += lib.ggml_nbytes(t) + 64
        t = lib.ggml_get_next_tensor(ctx, t)
    return needed


cdef int expand_graph(lib.ggml_context *ctx, lib.ggml_cgraph *graph, lib.ggml_tensor *output) except -1:
    """Add nodes bottom up, without recursion: ggml recurses, and a long chain of nodes overflows its stack."""
    cdef size_t most = lib.ggml_used_mem(ctx) // lib.ggml_tensor_overhead() + 1
    cdef lib.ggml_tensor **stack = <lib.ggml_tensor **>malloc(most * sizeof(lib.ggml_tensor *))
    cdef lib.ggml_tensor *top
    cdef lib.ggml_tensor *operand
    cdef size_t depth = 1
    cdef int i
    if stack == NULL:
        raise NoMemoryError(f"no memory to add {most} tensors to a graph")
    stack[0] = output
    while depth:
        top = stack[depth - 1]
        for i in range(lib.GGML_MAX_SRC):
            operand = top.src[i]
            if operand != NULL and operand != top and operand.op != lib.GGML_OP_NONE \
                    and not operand.flags & lib.GGML_TENSOR_FLAG_COMPUTE:
                stack[depth] = operand
                depth += 1
                break
        else:
            lib.ggml_build_forward_expand(graph, top)
            depth -= 1
    free(stack)
    return 0
