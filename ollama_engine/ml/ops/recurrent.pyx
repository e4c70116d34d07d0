"""Operations with a state for each sequence. They are ggml custom operations, which only its CPU backend runs.

All take a batch's segments (csrc/kernels/recurrent/segments.h): `rows` i32 [n], the batch's rows ordered by sequence
and position; `bounds` i32 [2, m], for each segment its part of `rows`, [begin, end); `slots` i32 [2, m], the slot of
the state that it goes on from, and of the one that it leaves. The number of slots stands for none. `states` f32
[elements, slots] is written; None: every segment begins with zeros and leaves nothing. A row of a result has the same
bits whatever the other sequences are, and however a sequence is cut into segments. Rows of no segment are undefined.
"""

from libc.stdint cimport int64_t

from ollama_engine.errors import ShapeError

from ollama_engine.ml.ggml cimport libggml as lib
from ollama_engine.ml.ggml.librecurrent cimport OE_CONV_TAPS, oe_causal_conv_op
from ollama_engine.ml.graph.row_check cimport limit_index
from ollama_engine.ml.graph.tensor cimport Graph, Tensor, describe, graph_of, wrap
from ollama_engine.ml.graph.types cimport check_size


cdef int _check_matrix(str op, str name, Tensor t, int64_t columns, int64_t rows) except -1:
    """An f32 matrix with contiguous rows; with -1 rows, any number of them."""
    if t.ptr.type != lib.GGML_TYPE_F32 or t.ptr.nb[0] != sizeof(float) or t.ptr.ne[0] != columns \
            or (rows >= 0 and t.ptr.ne[1] != rows) or t.ptr.ne[2] != 1 or t.ptr.ne[3] != 1:
        raise ShapeError(f"{op}: {name} is f32 [{columns}, {'slots' if rows < 0 else rows}] with contiguous rows, got "
                         f"{describe(t)}")
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


def causal_conv(Tensor x not None, Tensor weight not None, Tensor rows not None, Tensor bounds not None,
                Tensor slots not None, Tensor states=None):
    """Causal depthwise convolution of each sequence: x f32 [channels, n], weight f32 [taps, channels] -> [channels, n].

    A state is the latest taps - 1 inputs, [channels * (taps - 1)] with the oldest input first; a sequence begins with
    zeros. Up to 16 taps.
    """
    cdef Graph graph = graph_of(x, weight)
    cdef int64_t channels = x.ptr.ne[0], n = x.ptr.ne[1], taps = weight.ptr.ne[0]
    cdef lib.ggml_tensor *operands[6]
    cdef int64_t[4] ne = [channels, n, 1, 1]
    graph_of(x, rows, bounds, slots)
    _check_matrix("causal_conv", "x", x, channels, n)
    _check_matrix("causal_conv", "the weight", weight, taps, channels)
    if taps > OE_CONV_TAPS or not lib.ggml_is_contiguous(weight.ptr):
        raise ShapeError(f"causal_conv: the weight is contiguous and has up to {OE_CONV_TAPS} taps, got "
                         f"{describe(weight)}")
    _check_segments("causal_conv", n, rows, bounds, slots)
    if states is not None:
        graph_of(x, states)
        _check_matrix("causal_conv", "states", states, channels * (taps - 1), -1)
    check_size(ne)
    operands[0], operands[1], operands[2], operands[3], operands[4] = x.ptr, weight.ptr, rows.ptr, bounds.ptr, slots.ptr
    operands[5] = states.ptr if states is not None else NULL
    result = lib.ggml_custom_4d(graph.ctx, lib.GGML_TYPE_F32, ne[0], ne[1], 1, 1, operands,
                                6 if states is not None else 5, oe_causal_conv_op, lib.GGML_N_TASKS_MAX, NULL)
    _limit_segments(graph, rows, bounds, slots, states, result)
    return wrap(graph, result)
