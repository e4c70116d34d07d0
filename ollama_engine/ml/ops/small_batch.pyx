"""Small-batch matmul: products of weights with few rows of activations (csrc/kernels/small_batch/kernel.h).

A product is two ggml custom operations, which only ggml's CPU backend runs: the first converts the activations to the
kernel's layout (for quantized weights it also quantizes them), the second multiplies. Where the activations are the
result of a norm or of a gated unit, the first computes that as well, so that it is not written to memory.
"""

from cython cimport final
from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.libsmallbatch cimport (
    OE_SB_AMX, OE_SB_AVX2, OE_SB_AVX512, OE_SB_AVX_VNNI, OE_SB_BF16, OE_SB_F16, OE_SB_F16_WHOLE, OE_SB_FETCH_BURST,
    OE_SB_FETCH_DEEP, OE_SB_FETCH_L2, OE_SB_FETCH_NONE, OE_SB_FETCH_SPREAD, OE_SB_I8MM, OE_SB_IQ4_NL, OE_SB_IQ4_XS,
    OE_SB_MXFP4, OE_SB_NEON, OE_SB_PLAIN, OE_SB_Q2_K, OE_SB_Q3_K, OE_SB_Q4_0, OE_SB_Q4_1, OE_SB_Q4_K, OE_SB_Q5_0,
    OE_SB_Q5_1, OE_SB_Q5_K, OE_SB_Q6_K, OE_SB_Q8_0, OE_SB_TOGETHER, oe_cpu_has_avx2_fma_f16c, oe_cpu_has_avx512,
    oe_cpu_has_avx512_vnni, oe_cpu_has_avx_vnni, oe_cpu_has_neon_dotprod, oe_cpu_has_neon_i8mm, oe_cpu_is_intel,
    oe_plain_read_op, oe_sb_acts_size, oe_sb_fetch, oe_sb_interleaves, oe_sb_isa, oe_sb_kernel, oe_sb_kernel_find,
    oe_sb_kernel_for, oe_sb_multiply_op, oe_sb_multiplying, oe_sb_norm_eps, oe_sb_quantize_norm_op, oe_sb_quantize_op,
    oe_sb_quantize_swiglu_op, oe_sb_rounding, oe_sb_together, oe_sb_type, oe_sb_variant,
)
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, alive, describe, graph_of, root_of, wrap
from ollama_engine.ml.graph.types cimport check_size, type_of

cdef dict _TYPES = {
    "q4_K": OE_SB_Q4_K,
    "q6_K": OE_SB_Q6_K,
    "q5_K": OE_SB_Q5_K,
    "q3_K": OE_SB_Q3_K,
    "q2_K": OE_SB_Q2_K,
    "iq4_xs": OE_SB_IQ4_XS,
    "q4_0": OE_SB_Q4_0,
    "q4_1": OE_SB_Q4_1,
    "q5_0": OE_SB_Q5_0,
    "q5_1": OE_SB_Q5_1,
    "q8_0": OE_SB_Q8_0,
    "iq4_nl": OE_SB_IQ4_NL,
    "mxfp4": OE_SB_MXFP4,
    "f16": OE_SB_F16,
    "bf16": OE_SB_BF16,
}
cdef dict _KINDS = {<int>type_of(dtype): kind for dtype, kind in _TYPES.items()}
# From the slowest to the fastest.
cdef dict _INSTRUCTIONS = {
    "scalar": OE_SB_PLAIN, "avx2": OE_SB_AVX2, "avxvnni": OE_SB_AVX_VNNI, "avx512": OE_SB_AVX512,
    "amx": OE_SB_AMX, "neon": OE_SB_NEON, "i8mm": OE_SB_I8MM,
}  # fmt: skip
# mul_mat_id_small_batch has kernels for the quantized types only.
cdef tuple _FLOATS = ("f16", "bf16")
cdef dict _FETCHES = {
    "spread": OE_SB_FETCH_SPREAD, "burst": OE_SB_FETCH_BURST, "l2": OE_SB_FETCH_L2, "deep": OE_SB_FETCH_DEEP,
    "none": OE_SB_FETCH_NONE,
}  # fmt: skip
# An oe_sb_variant by its name: how weights are fetched, and "-2" for two_streams, "-rows" for rows_in_lanes. The first
# is what a product has by default.
SMALL_BATCH_VARIANTS = (*_FETCHES, "spread-2", "l2-2", "deep-2", "spread-rows", "l2-rows")
SMALL_BATCH_QUANTIZED = tuple([dtype for dtype in _TYPES if dtype not in _FLOATS])
cdef int64_t MANY = 1 << 20  # more results than the widest kernel needs
cdef int64_t SHORTEST = 16  # f16 and bf16 rows must be multiples of this; blocks of the other types always are


cdef const oe_sb_kernel *_kernel(lib.ggml_type weights, str instructions, int64_t m, bint whole=False) noexcept:
    kind = OE_SB_F16_WHOLE if whole else _KINDS.get(<int>weights)
    if kind is None:
        return NULL
    return oe_sb_kernel_find(<oe_sb_type><int>kind, <oe_sb_isa><int>_INSTRUCTIONS[instructions], m)


def small_batch_instructions(str dtype not None):
    """Instruction sets of this CPU for which mul_mat_small_batch has kernels, slowest ("scalar") first.

    () for types without kernels.
    """
    cdef lib.ggml_type kind = type_of(dtype)
    return tuple([name for name in _INSTRUCTIONS if _kernel(kind, name, MANY) != NULL])


cdef dict _FASTEST = {
    <int>type_of(dtype): small_batch_instructions(dtype)[-1]
    for dtype in _TYPES
}


def cpu_traits():
    """Traits of this CPU, a subset of: avx2 (with FMA and F16C), avxvnni, avx512 (F, BW and VL), avx512vnni, intel, amx
    (tiles of bytes beside avx512vnni, which the system lets this process use), neon (with SDOT), and i8mm (SMMLA).
    """
    has = {
        "avx2": oe_cpu_has_avx2_fma_f16c(), "avxvnni": oe_cpu_has_avx_vnni(), "avx512": oe_cpu_has_avx512(),
        "avx512vnni": oe_cpu_has_avx512_vnni(), "intel": oe_cpu_is_intel(),
        "amx": _kernel(lib.GGML_TYPE_Q4_0, "amx", MANY) != NULL, "neon": oe_cpu_has_neon_dotprod(),
        "i8mm": oe_cpu_has_neon_i8mm(),
    }  # fmt: skip
    return frozenset([name for name, there in has.items() if there])


def small_batch_variants(str dtype not None, int64_t rows):
    """Those of SMALL_BATCH_VARIANTS that differ for so many rows of activations, with the fastest instructions."""
    cdef lib.ggml_type kind = type_of(dtype)
    kernel = _kernel(kind, <str>_FASTEST[<int>kind], MANY)
    few = rows <= oe_sb_kernel_for(kernel, 1).interleaved
    return tuple([
        name for name in SMALL_BATCH_VARIANTS
        if (rows == 1 or not name.endswith("-2")) and ((few and rows > 1) or not name.endswith("-rows"))
    ])


def reads_in_place(Tensor weight not None):
    """Whether mul_mat_small_batch or its sibling for experts can read this weight where it lies.

    It must lie in the CPU's memory, row by row as in a file.
    """
    alive(weight)
    cdef lib.ggml_tensor *w = weight.ptr
    cdef lib.ggml_tensor *source = w if w.view_src == NULL else w.view_src  # views get their buffer later
    if <int>w.type not in _FASTEST or w.ne[0] % SHORTEST or w.ne[3] != 1 or weight.owner.is_repacked:
        return False
    if source.buffer == NULL or not lib.ggml_backend_buffer_is_host(source.buffer):
        return False
    device = lib.ggml_backend_buft_get_device(lib.ggml_backend_buffer_get_type(source.buffer))
    # A buffer type without a device is that of a mapped file.
    return device == NULL or lib.get_dev_type(device) == lib.GGML_BACKEND_DEVICE_TYPE_CPU


cdef int _check(Tensor a, Tensor b) except -1:
    cdef lib.ggml_tensor *x = a.ptr
    cdef lib.ggml_tensor *y = b.ptr
    if x.ne[0] % SHORTEST:
        raise ShapeError(f"mul_mat_small_batch: rows of {describe(a)} must be a multiple of {SHORTEST} long; "
                         "use mul_mat")
    if x.nb[0] != lib.ggml_type_size(x.type) or x.nb[0] > x.nb[1]:
        raise ShapeError(f"mul_mat_small_batch: {describe(a)} must have contiguous rows and not be transposed")
    if y.type != lib.GGML_TYPE_F32 or y.nb[0] != sizeof(float) or y.nb[0] > y.nb[1]:
        raise ShapeError(f"mul_mat_small_batch: the right side must be f32 with contiguous rows, got {describe(b)}")
    if x.ne[0] != y.ne[0] or x.ne[2] != 1 or x.ne[3] != 1 or y.ne[2] != 1 or y.ne[3] != 1:
        raise ShapeError(f"mul_mat_small_batch: {describe(a)} and {describe(b)} do not fit: first dimensions must be "
                         "equal, and there are two; use mul_mat for more")
    return 0


cdef lib.ggml_tensor *custom(Graph graph, const int64_t *ne, lib.ggml_type type, lib.ggml_tensor **operands, int n,
                             lib.ggml_custom_op_t run, int n_tasks, void *userdata) except NULL:
    check_size(ne)
    return lib.ggml_custom_4d(graph.ctx, type, ne[0], ne[1], ne[2], ne[3], operands, n, run, n_tasks, userdata)


cdef const oe_sb_kernel *kernel_of(
    str op, tuple types, Tensor weight, str instructions, bint whole=False
) except NULL:
    """The kernel for this weight with these instructions, or the fastest one for None. Raises ShapeError."""
    if weight.dtype not in types:
        allowed = f"{', '.join(types[:-1])} or {types[-1]}" if len(types) > 1 else types[0]
        raise ShapeError(f"{op}: the weight must be {allowed}, got {describe(weight)}; "
                         f"use {op.removesuffix('_small_batch')}")
    if instructions is not None and instructions not in small_batch_instructions(weight.dtype):
        raise ShapeError(f"{op}: no {instructions!r} kernel for {weight.dtype} weights here; "
                         f"there are {small_batch_instructions(weight.dtype)}")
    return _kernel(weight.ptr.type, instructions or <str>_FASTEST[<int>weight.ptr.type], weight.ptr.ne[1], whole)


@final
cdef class _Rounding:
    """Arguments of a conversion. The graph keeps it alive, since ggml holds only a pointer."""

    cdef oe_sb_rounding values


cdef _Rounding _rounding_of(Graph graph, const oe_sb_kernel *kernel, bint interleaved, float eps):
    key = ("rounding", <size_t>kernel, interleaved, eps)
    rounding = graph.kept.get(key)
    if rounding is None:
        rounding = _Rounding()
        (<_Rounding>rounding).values = oe_sb_rounding(kernel, interleaved, eps)
        graph.kept[key] = rounding
    return rounding


@final
cdef class _Multiplying:
    """What a product is told, kept alive like a _Rounding."""

    cdef oe_sb_multiplying values


cdef oe_sb_multiplying *multiplying_by(str op, Graph graph, const oe_sb_kernel *kernel, str variant) except NULL:
    """What a product is told. Raises ShapeError for a variant that is none of SMALL_BATCH_VARIANTS."""
    key = ("multiplying", <size_t>kernel, variant)
    multiplying = graph.kept.get(key)
    if multiplying is None:
        if variant not in SMALL_BATCH_VARIANTS:
            raise ShapeError(f"{op}: no variant {variant!r}; there are {SMALL_BATCH_VARIANTS}")
        multiplying = _Multiplying()
        fetch = _FETCHES[variant.partition("-")[0]]
        (<_Multiplying>multiplying).values = oe_sb_multiplying(
            kernel, oe_sb_variant(<oe_sb_fetch><int>fetch, variant.endswith("-2"), variant.endswith("-rows")))
        graph.kept[key] = multiplying
    return &(<_Multiplying>multiplying).values


@final
cdef class _Together:
    """What products of the same activations are told, kept alive like a _Rounding."""

    cdef oe_sb_together values


cdef bint _unchanged(Graph graph, lib.ggml_tensor *t):
    return <size_t>root_of(t) not in graph.written


cdef bint _is_swiglu(Graph graph, lib.ggml_tensor *b):
    """Whether b is silu(x) * y of two tensors with contiguous rows, which nothing writes into."""
    return b.op == lib.GGML_OP_GLU and lib.ggml_get_glu_op(b) == lib.GGML_GLU_OP_SWIGLU and b.src[1] != NULL \
        and _unchanged(graph, b) and _unchanged(graph, b.src[0]) and _unchanged(graph, b.src[1])


cdef bint _is_norm(Graph graph, lib.ggml_tensor *b):
    """Whether b is rms_norm(x) * weight [n], of an x with contiguous rows, and nothing writes into these."""
    if b.op != lib.GGML_OP_MUL or b.src[0].op != lib.GGML_OP_RMS_NORM or b.type != lib.GGML_TYPE_F32:
        return False
    cdef lib.ggml_tensor *weight = b.src[1]
    cdef lib.ggml_tensor *x = b.src[0].src[0]
    return weight.type == lib.GGML_TYPE_F32 and weight.ne[0] == lib.ggml_nelements(weight) == b.ne[0] \
        and lib.ggml_is_contiguous(weight) and x.nb[0] == sizeof(float) and x.nb[0] <= x.nb[1] \
        and _unchanged(graph, b) and _unchanged(graph, b.src[0]) and _unchanged(graph, x) and _unchanged(graph, weight)


cdef lib.ggml_tensor *_convert(
    Graph graph, lib.ggml_tensor *b, const oe_sb_kernel *kernel, bint interleaved
) except NULL:
    """The node that converts b, and computes it where b is a gated unit or a norm: their own nodes are not run then,
    unless something else reads them."""
    cdef int64_t[4] ne = [oe_sb_acts_size(kernel, b.ne[0], b.ne[1]), 1, 1, 1]
    cdef lib.ggml_tensor *operands[2]
    cdef int n = 1
    cdef float eps = 0
    cdef lib.ggml_custom_op_t run = oe_sb_quantize_op
    operands[0] = b
    if _is_swiglu(graph, b):
        operands[0], operands[1], n = b.src[0], b.src[1], 2
        run = oe_sb_quantize_swiglu_op
    elif _is_norm(graph, b):
        operands[0], operands[1], n = b.src[0].src[0], b.src[1], 2
        eps = oe_sb_norm_eps(b.src[0])
        run = oe_sb_quantize_norm_op
    return custom(graph, ne, lib.GGML_TYPE_I8, operands, n, run, lib.GGML_N_TASKS_MAX,
                  <void *>&_rounding_of(graph, kernel, interleaved, eps).values)


cdef Tensor _rounded(Graph graph, Tensor b, const oe_sb_kernel *kernel, bint interleaved):
    """The node that converts the activations. Query, key and value multiply the same values and share it."""
    whole = kernel.whole if interleaved else 0
    key = (<size_t>b.ptr, <size_t>kernel.quantize, kernel.packs, interleaved, whole)
    acts = graph.rounded.get(key)
    if acts is None:
        acts = wrap(graph, _convert(graph, b.ptr, kernel, interleaved))
        graph.rounded[key] = acts
    return acts


@final
cdef class _Product:
    """A product whose node is not made yet."""

    cdef Tensor weight, acts, result
    cdef oe_sb_multiplying by


cdef _Product _product(Graph graph, Tensor a, Tensor b, str instructions, str variant, bint whole=False):
    cdef _Product product = _Product()
    kernel = kernel_of("mul_mat_small_batch", ("f16",) if whole else SMALL_BATCH_QUANTIZED + _FLOATS, a,
                       instructions, whole)
    kernel = oe_sb_kernel_for(kernel, b.ptr.ne[1])
    _check(a, b)
    # Few results are multiplied in plain C, but their activations are those of others.
    rounding = _kernel(a.ptr.type, instructions or <str>_FASTEST[<int>a.ptr.type], MANY, whole)
    product.weight, product.by = a, multiplying_by("mul_mat_small_batch", graph, kernel, variant)[0]
    product.acts = _rounded(graph, b, oe_sb_kernel_for(rounding, b.ptr.ne[1]),
                            oe_sb_interleaves(kernel, product.by.variant, b.ptr.ne[0], b.ptr.ne[1]))
    return product


def _row_bytes(_Product product):
    return product.weight.ptr.nb[1]


cdef int _multiply(Graph graph, list products, int64_t rows) except -1:
    """Make the node of products that share their activations, up to OE_SB_TOGETHER, and set their results.

    Those with short rows come first: the first thread takes half of all rows, which then are not the dearest.
    """
    cdef lib.ggml_tensor *operands[9]  # 1 + OE_SB_TOGETHER
    cdef int64_t[4] ne = [0, rows, 1, 1]
    cdef _Together together = _Together()
    cdef _Product product
    cdef int i, count = len(products)
    products = sorted(products, key=_row_bytes)
    cdef size_t size, begin = 0
    cdef int64_t m
    operands[0] = (<_Product>products[0]).acts.ptr
    together.values.rows, together.values.count = rows, count
    for i, product in enumerate(products):
        operands[1 + i] = product.weight.ptr
        together.values.products[i] = product.by
        ne[0] += product.weight.ptr.ne[1]
    if count > 1:  # a product's rows follow those of the one before it
        ne[0], ne[1] = ne[0] * rows, 1
    graph.kept[together] = together
    node = custom(graph, ne, lib.GGML_TYPE_F32, operands, 1 + count, oe_sb_multiply_op, lib.GGML_N_TASKS_MAX,
                  <void *>&together.values)
    for product in products:
        m = product.weight.ptr.ne[1]
        size = m * rows * sizeof(float)
        product.result = wrap(graph, node if count == 1 else lib.ggml_view_4d(
            graph.ctx, node, m, rows, 1, 1, m * sizeof(float), size, size, begin))
        begin += size
    return 0


def mul_mat_small_batch(Tensor a not None, Tensor b not None, str instructions=None,
                        str variant not None="spread", bint whole=False):
    """Product with a transposed, as mul_mat: a [n, m] of type f16, bf16 or one of SMALL_BATCH_QUANTIZED, b f32 [n, k]
    -> f32 [m, k].

    Takes any k, and is fast for a small one. `b` is quantized to 8 bits as in mul_mat where a is quantized, rounded to
    bf16 where a is bf16, and stays f32 where a is f16. A row of the result has the same bits on every CPU and whatever
    the other rows are (NaNs aside).
    `instructions`: one of `small_batch_instructions(a.dtype)`; None takes the last. `variant`: how weights are fetched,
    one of SMALL_BATCH_VARIANTS; a row has the same bits with each. `whole`: round b to whole numbers of 16 bits, and a,
    which is f16, to 14 bits, both to about 1e-4 (mul_mat rounds b to f16). With many rows that is twice as fast where
    the CPU has AVX-512 VNNI.
    """
    cdef Graph graph = graph_of(a, b)
    cdef _Product product = _product(graph, a, b, instructions, variant, whole)
    _multiply(graph, [product], b.ptr.ne[1])
    return product.result


def mul_mats_small_batch(weights, Tensor b not None, variants):
    """`mul_mat_small_batch` of each weight, with its variant. Those whose activations are rounded alike are one
    operation, in which threads wait for each other once.
    """
    cdef Graph graph
    cdef _Product product
    cdef list products = []
    cdef dict alike = {}
    for weight, variant in zip(weights, variants, strict=True):
        graph = graph_of(weight, b)
        product = _product(graph, weight, b, None, variant)
        products.append(product)
        alike.setdefault(<size_t>product.acts.ptr, []).append(product)
    for shared in alike.values():
        for i in range(0, len(shared), OE_SB_TOGETHER):
            _multiply(graph, shared[i : i + OE_SB_TOGETHER], b.ptr.ne[1])
    return [(<_Product>each).result for each in products]


def plain_read(Tensor weight not None, Tensor x not None):
    """Reads a weight on the CPU and computes nothing, in as many threads as compute: the least time that a product of
    it and `x` takes. -> i32 without meaning.
    """
    cdef Graph graph = graph_of(weight, x)
    cdef lib.ggml_tensor *operands[2]
    cdef int64_t[4] ne = [16 * lib.GGML_MAX_N_THREADS, 1, 1, 1]
    if not lib.ggml_is_contiguous(weight.ptr):
        raise ShapeError(f"plain_read: {describe(weight)} must be contiguous")
    operands[0], operands[1] = weight.ptr, x.ptr
    return wrap(graph, custom(graph, ne, lib.GGML_TYPE_I32, operands, 2, oe_plain_read_op, lib.GGML_N_TASKS_MAX, NULL))
