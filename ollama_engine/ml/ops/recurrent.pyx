"""Operations with a state for each sequence. They are ggml custom operations, which only its CPU backend runs.

All take a batch's segments (csrc/kernels/recurrent/segments.h): `rows` i32 [n], the batch's rows ordered by sequence
and position; `bounds` i32 [2, m], for each segment its part of `rows`, [begin, end); `slots` i32 [2, m], the slot of
the state that it goes on from, and of the one that it leaves. The number of slots stands for none. `states` f32
[elements, slots] is written; None: every segment begins with zeros and leaves nothing. A row of a result has the same
bits whatever the other sequences are, and however a sequence is cut into segments. Rows of no segment are undefined.
`instructions` is one of `recurrent_instructions`, by default the last; all give the same bits.
"""

from cython cimport final
from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.librecurrent cimport (
    OE_CONV_TAPS, OE_RECURRENT_AVX2, OE_RECURRENT_AVX512, OE_RECURRENT_NEON, OE_RECURRENT_SCALAR,
    OE_STATE_COLUMNS, OE_STATE_ROWS, oe_causal_conv_gated_op, oe_causal_conv_op, oe_causal_conv_silu_op,
    oe_delta_net_by, oe_delta_net_op, oe_recurrent_isa, oe_recurrent_kernel, oe_recurrent_kernel_find, oe_ssm_scan_op,
)
from ollama_engine.ml.ops.operands cimport finite
from ollama_engine.ml.graph.row_check cimport limit_index
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, alive, describe, graph_of, wrap
from ollama_engine.ml.graph.types cimport check_size

# From the slowest to the fastest.
cdef dict _INSTRUCTIONS = {
    "scalar": OE_RECURRENT_SCALAR, "avx2": OE_RECURRENT_AVX2, "avx512": OE_RECURRENT_AVX512, "neon": OE_RECURRENT_NEON,
}  # fmt: skip


cdef void *_kernel(str instructions) except NULL:
    cdef const oe_recurrent_kernel *kernel = NULL
    chosen = _FASTEST if instructions is None else _INSTRUCTIONS.get(instructions)
    if chosen is not None:
        kernel = oe_recurrent_kernel_find(<oe_recurrent_isa><int>chosen)
    if kernel == NULL:
        raise ShapeError(f"no {instructions!r} kernel for recurrent operations here; there are "
                         f"{', '.join(recurrent_instructions())}")
    return <void *>kernel


def recurrent_instructions():
    """Instruction sets that this CPU has a kernel of recurrent operations for, slowest ("scalar") first."""
    return tuple([name for name, isa in _INSTRUCTIONS.items()
                  if oe_recurrent_kernel_find(<oe_recurrent_isa><int>isa) != NULL])


cdef object _FASTEST = _INSTRUCTIONS[recurrent_instructions()[-1]]


cdef Graph _graph_of(tuple operands):
    """The graph of all operands, which may be None."""
    cdef Tensor anchor = operands[0]
    for t in operands:
        if t is not None:
            alive(t)
            if (<Tensor>t).owner.is_graph:
                anchor = t
    for t in operands:
        graph_of(anchor, t)
    return <Graph>anchor.owner


cdef int _check_matrix(str op, str name, Tensor t, int64_t columns, int64_t rows) except -1:
    """An f32 matrix with contiguous rows; with -1 rows, any number of them."""
    if t.ptr.type != lib.GGML_TYPE_F32 or t.ptr.nb[0] != sizeof(float) or t.ptr.ne[0] != columns \
            or (rows >= 0 and t.ptr.ne[1] != rows) or t.ptr.ne[2] != 1 or t.ptr.ne[3] != 1:
        raise ShapeError(f"{op}: {name} is f32 [{columns}, {'slots' if rows < 0 else rows}] with contiguous rows, got "
                         f"{describe(t)}")
    return 0


cdef int _check_states(str op, Graph graph, Tensor states, int64_t size) except -1:
    """States that may be written."""
    if states is not None:
        _check_matrix(op, "states", states, size, -1)
        graph.check_target(states, op)
    return 0


cdef int _check_segments(str op, int64_t n, Tensor rows, Tensor bounds, Tensor slots) except -1:
    for name, t, columns in (("rows", rows, n), ("bounds", bounds, 2), ("slots", slots, 2)):
        count = 1 if name == "rows" else (<Tensor>bounds).ptr.ne[1]
        if (<Tensor>t).ptr.type != lib.GGML_TYPE_I32 or not lib.ggml_is_contiguous((<Tensor>t).ptr) \
                or (<Tensor>t).ptr.ne[0] != columns or lib.ggml_nelements((<Tensor>t).ptr) != columns * count:
            raise ShapeError(f"{op}: rows are i32 [{n}], bounds and slots i32 [2, segments], got {describe(rows)}, "
                             f"{describe(bounds)} and {describe(slots)}")
    return 0


cdef int _limit_segments(Graph graph, Tensor rows, Tensor bounds, Tensor slots, Tensor states,
                         lib.ggml_tensor *result) except -1:
    limit_index(graph, rows, rows.ptr.ne[0], result)
    limit_index(graph, bounds, rows.ptr.ne[0] + 1, result)
    limit_index(graph, slots, 1 if states is None else states.ptr.ne[1] + 1, result)
    return 0


cdef int _check_numbers(str op, str name, Tensor t, int64_t n) except -1:
    """n f32 numbers, in any shape."""
    if t.ptr.type != lib.GGML_TYPE_F32 or lib.ggml_nelements(t.ptr) != n or not lib.ggml_is_contiguous(t.ptr):
        raise ShapeError(f"{op}: {name} is f32 with {n} numbers, contiguous, got {describe(t)}")
    return 0


def causal_conv(Tensor x not None, Tensor weight not None, Tensor rows not None, Tensor bounds not None,
                Tensor slots not None, Tensor states=None, *, Tensor bias=None, silu=False, gated=False,
                str instructions=None):
    """Causal depthwise convolution of each sequence: x f32 [channels, n], weight f32 [taps, channels] -> [channels, n].

    A state is the latest taps - 1 inputs, [channels * (taps - 1)] with the oldest input first; a sequence begins with
    zeros. Up to 16 taps. `bias` f32 [channels] is added; with `silu`, the result is SiLU of the sum. With `gated`, x is
    [3 * channels, n]: what inputs are multiplied with, what results are multiplied with, and the inputs.
    """
    cdef Graph graph = _graph_of((x, weight, rows, bounds, slots, states, bias))
    cdef int64_t parts = 3 if gated else 1, channels = x.ptr.ne[0] // parts, n = x.ptr.ne[1], taps = weight.ptr.ne[0]
    cdef lib.ggml_tensor *operands[7]
    cdef int64_t[4] ne = [channels, n, 1, 1]
    cdef lib.ggml_custom_op_t run = oe_causal_conv_silu_op if silu else oe_causal_conv_op
    if gated:
        run = oe_causal_conv_gated_op
        if silu:
            raise ShapeError("causal_conv: results are multiplied with a gate, or SiLU is taken of them, not both")
    _check_matrix("causal_conv", "x", x, parts * channels, n)
    if weight.ptr.ne[1] != 1 or weight.ptr.ne[2] != channels:  # [taps, 1, channels] is the same
        _check_matrix("causal_conv", "the weight", weight, taps, channels)
    if taps > OE_CONV_TAPS or not lib.ggml_is_contiguous(weight.ptr):
        raise ShapeError(f"causal_conv: the weight is contiguous and has up to {OE_CONV_TAPS} taps, got "
                         f"{describe(weight)}")
    if bias is not None:
        _check_numbers("causal_conv", "the bias", bias, channels)
    _check_segments("causal_conv", n, rows, bounds, slots)
    _check_states("causal_conv", graph, states, channels * (taps - 1))
    check_size(ne)
    operands[0], operands[1], operands[2], operands[3], operands[4] = x.ptr, weight.ptr, rows.ptr, bounds.ptr, slots.ptr
    operands[5] = bias.ptr if bias is not None else NULL
    operands[6] = states.ptr if states is not None else NULL
    result = lib.ggml_custom_4d(graph.ctx, lib.GGML_TYPE_F32, ne[0], ne[1], 1, 1, operands, 7, run,
                                lib.GGML_N_TASKS_MAX, _kernel(instructions))
    _limit_segments(graph, rows, bounds, slots, states, result)
    return wrap(graph, result)


cdef int _check_heads(str op, str name, Tensor t, int64_t dim, int64_t heads, int64_t n) except -1:
    """f32 [dim, heads, n] with contiguous rows."""
    if t.ptr.type != lib.GGML_TYPE_F32 or t.ptr.nb[0] != sizeof(float) or t.ptr.ne[0] != dim \
            or t.ptr.ne[1] != heads or t.ptr.ne[2] != n or t.ptr.ne[3] != 1:
        raise ShapeError(f"{op}: {name} is f32 [{dim}, {heads}, {n}] with contiguous rows, got {describe(t)}")
    return 0


cdef int _check_rows(str op, str name, int64_t n) except -1:
    if n > OE_STATE_ROWS:
        raise ShapeError(f"{op}: {name} has up to {OE_STATE_ROWS} numbers; got {n}")
    return 0


cdef int _check_share(str op, int64_t heads, int64_t shared) except -1:
    if heads % shared:
        raise ShapeError(f"{op}: {heads} heads cannot share {shared}")
    return 0


cdef Tensor _scan(Graph graph, Tensor like, list operands, Tensor rows, Tensor bounds, Tensor slots, Tensor states,
                  Tensor last, lib.ggml_custom_op_t run, void *kernel):
    """The node of an operation whose result is shaped as `like`, [dim, heads, n]. `last` follows the states."""
    cdef lib.ggml_tensor *pointers[9]
    cdef int64_t[4] ne = [like.ptr.ne[0], like.ptr.ne[1], like.ptr.ne[2], 1]
    cdef int i
    check_size(ne)
    for i, operand in enumerate((*operands, rows, bounds, slots)):
        pointers[i] = (<Tensor>operand).ptr
    pointers[8] = states.ptr if states is not None else NULL
    result = lib.ggml_custom_4d(graph.ctx, lib.GGML_TYPE_F32, ne[0], ne[1], ne[2], 1, pointers, 9, run,
                                lib.GGML_N_TASKS_MAX, kernel)
    if last is not None:
        result.src[9] = last.ptr  # ggml_custom_4d takes one less than a node holds
    _limit_segments(graph, rows, bounds, slots, states, result)
    return wrap(graph, result)


@final
cdef class _DeltaNet:
    """Arguments of a delta net. The graph keeps it alive, since ggml holds only a pointer."""

    cdef oe_delta_net_by values


def gated_delta_net(Tensor q not None, Tensor k not None, Tensor v not None, Tensor g not None, Tensor beta not None,
                    Tensor rows not None, Tensor bounds not None, Tensor slots not None, Tensor states=None, *,
                    grouped=False, eps=None, str instructions=None):
    """Gated delta rule of each sequence (Yang et al. 2025): q, k f32 [dk, key_heads, n], v f32 [dv, heads, n], g and
    beta f32 [heads, n] -> f32 [dv, heads, n]. g [dk, heads, n] has a number for each number of a key, none above 0
    (Kimi delta attention).

    For each token a head's state S becomes e^g S, then S + k (beta (v - S^T k))^T, and S^T q is the result. Head h has
    the queries and keys of head h % key_heads, with `grouped` those of h // (heads / key_heads). With `eps`,
    queries and keys are divided by their lengths first, sqrt(sum of squares + eps), and queries by sqrt(dk). dk is up
    to 256. A state is [dv, dk, heads] as one row, in blocks of 32 of dv.
    """
    cdef Graph graph = _graph_of((q, k, v, g, beta, rows, bounds, slots, states))
    cdef int64_t dk = k.ptr.ne[0], key_heads = k.ptr.ne[1], dv = v.ptr.ne[0], heads = v.ptr.ne[1], n = v.ptr.ne[2]
    cdef _DeltaNet by = _DeltaNet()
    by.values.kernel, by.values.grouped = <const oe_recurrent_kernel *>_kernel(instructions), grouped
    by.values.to_unit, by.values.eps = eps is not None, 0 if eps is None else finite(eps, "gated_delta_net", "eps")
    _check_heads("gated_delta_net", "q", q, dk, key_heads, n)
    _check_heads("gated_delta_net", "k", k, dk, key_heads, n)
    _check_heads("gated_delta_net", "v", v, dv, heads, n)
    if dk > 1 and g.ptr.ne[0] == dk and g.ptr.ne[1] == heads and g.ptr.ne[2] == n:
        _check_heads("gated_delta_net", "g", g, dk, heads, n)
    else:
        _check_matrix("gated_delta_net", "g", g, heads, n)
    _check_matrix("gated_delta_net", "beta", beta, heads, n)
    _check_rows("gated_delta_net", "a key", dk)
    _check_share("gated_delta_net", heads, key_heads)
    _check_segments("gated_delta_net", n, rows, bounds, slots)
    _check_states("gated_delta_net", graph, states, dk * dv * heads)
    graph.kept[by] = by
    return _scan(graph, v, [q, k, v, g, beta], rows, bounds, slots, states, None, oe_delta_net_op,
                 <void *>&by.values)


def ssm_state_size(int64_t dim, int64_t d_state, int64_t heads):
    """Numbers of a state of `ssm_scan`: for each head a matrix [dim, d_state], and a scale for each block of it."""
    return (dim * d_state + (dim + OE_STATE_COLUMNS - 1) // OE_STATE_COLUMNS) * heads


def ssm_scan(Tensor x not None, Tensor dt not None, Tensor a not None, Tensor b not None, Tensor c not None,
             Tensor rows not None, Tensor bounds not None, Tensor slots not None, Tensor states=None, *, Tensor d=None,
             str instructions=None):
    """State-space scan of each sequence (Mamba-2, Dao and Gu 2024): x f32 [dim, heads, n], dt f32 [heads, n], a f32
    with a number for each head, b and c f32 [d_state, groups, n] -> f32 [dim, heads, n].

    For each token a head's state h becomes e^(dt a) h + dt b x^T, and h^T c is the result, to which `d` times x is
    added, of a number for each head. Head i has b and c of group i // (heads / groups). dt is positive and a is not.
    d_state is up to 256. A state is one row of `ssm_state_size` numbers: [dim, d_state, heads] in blocks of 32 of dim,
    then the scale of each block, by which it is multiplied; zeros are a new state.
    """
    cdef Graph graph = _graph_of((x, dt, a, b, c, rows, bounds, slots, states, d))
    cdef int64_t dim = x.ptr.ne[0], heads = x.ptr.ne[1], n = x.ptr.ne[2], d_state = b.ptr.ne[0], groups = b.ptr.ne[1]
    _check_heads("ssm_scan", "x", x, dim, heads, n)
    _check_matrix("ssm_scan", "dt", dt, heads, n)
    _check_heads("ssm_scan", "b", b, d_state, groups, n)
    _check_heads("ssm_scan", "c", c, d_state, groups, n)
    _check_numbers("ssm_scan", "a", a, heads)
    if d is not None:
        _check_numbers("ssm_scan", "d", d, heads)
    _check_rows("ssm_scan", "a state", d_state)
    _check_share("ssm_scan", heads, groups)
    _check_segments("ssm_scan", n, rows, bounds, slots)
    _check_states("ssm_scan", graph, states, ssm_state_size(dim, d_state, heads))
    return _scan(graph, x, [x, dt, a, b, c], rows, bounds, slots, states, d, oe_ssm_scan_op, _kernel(instructions))
