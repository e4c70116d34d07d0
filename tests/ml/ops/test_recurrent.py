"""Recurrent operations: against numpy, the same bits however sequences are cut, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine.errors import ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.recurrent import recurrent_instructions, ssm_state_size
from tests.ml.ops import reference as ref
from tests.support.instruction_sets import RECURRENT, RecordProperty, every

Floats = NDArray[np.float32]
Segment = tuple[list[int], int, int]
"""Rows, the slot that is read, the slot that is written."""
SLOTS = 5
NONE = SLOTS


class Operation:
    """An operation with random weights and with states, which are noise at first. `width`: numbers of a row of it."""

    width: int
    state_size: int
    instructions: str | None = None

    def __init__(self, backend: Backend) -> None:
        self.noise = _noise(SLOTS, self.state_size)
        self._backend = backend
        self._storage = Storage(backend, 1)
        self.states = self._storage.add("states", "f32", (self.state_size, SLOTS))
        self._storage.allocate(0)
        self.states.set(self.noise)

    def inputs(self, n: int, seed: int = 0) -> list[Floats]:
        """The operands of n rows, [n, ...] each."""
        raise NotImplementedError

    def node(self, ctx: Context, rows: Sequence[Tensor], table: Sequence[Tensor], states: Tensor | None) -> Tensor:
        raise NotImplementedError

    def expected(self, rows: Sequence[Any], segments: Any, states: Any) -> Any:
        """In numpy with float64; changes `states`."""
        raise NotImplementedError

    def run(self, rows: Sequence[Floats], segments: Sequence[Segment], *, stored: bool = True) -> Floats:
        table = laid_out(segments)
        with Context(self._backend) as ctx:
            given = [ctx.input("i32", array.shape[::-1]) for array in table]
            out = self.node(ctx, [ctx.from_floats(part) for part in rows], given, self.states if stored else None)
            ctx.forward(out)
            ctx.alloc()
            for tensor, array in zip(given, table, strict=True):
                tensor.set(array)
            ctx.compute()
            found: Floats = out.numpy().reshape(len(rows[0]), self.width)
            return found


class Convolution(Operation):
    def __init__(self, backend: Backend, channels: int, taps: int, *, silu: bool = False, gated: bool = False) -> None:
        self.width, self.state_size = channels, channels * (taps - 1)
        self.weight = _noise(channels, taps)
        self._bias = _noise(1, channels)[0] if silu else None
        self._gated = gated
        super().__init__(backend)

    def inputs(self, n: int, seed: int = 0) -> list[Floats]:
        return [_noise(n, self.width * (3 if self._gated else 1), seed)]

    def node(self, ctx: Context, rows: Sequence[Tensor], table: Sequence[Tensor], states: Tensor | None) -> Tensor:
        bias = None if self._bias is None else ctx.from_floats(self._bias)
        return ops.causal_conv(
            *rows, ctx.from_floats(self.weight), *table, states, bias=bias, silu=bias is not None,
            gated=self._gated, instructions=self.instructions,
        )  # fmt: skip

    def expected(self, rows: Sequence[Any], segments: Any, states: Any) -> Any:
        before, after, x = np.split(rows[0], 3, axis=-1) if self._gated else (1, 1, rows[0])
        y = after * ref.causal_conv(before * x, self.weight.T.astype(np.float64), *segments, states)
        return y if self._bias is None else (y + self._bias) / (1 + np.exp(-(y + self._bias)))


class DeltaNet(Operation):
    def __init__(
        self, backend: Backend, dk: int, key_heads: int, dv: int, heads: int, *, grouped: bool = False,
        by_row: bool = False, eps: float | None = None,
    ) -> None:  # fmt: skip
        self.width, self.state_size, self._eps = dv * heads, dk * dv * heads, eps
        self._sizes, self._grouped, self._by_row = (dk, key_heads, dv, heads), grouped, by_row
        super().__init__(backend)

    def inputs(self, n: int, seed: int = 0) -> list[Floats]:
        dk, key_heads, dv, heads = self._sizes
        q, k = (_noise(n, key_heads * dk, seed + at).reshape(n, key_heads, dk) / dk**0.5 for at in (1, 2))
        v = _noise(n, self.width, seed + 3).reshape(n, heads, dv)
        g = -np.abs(_noise(n, heads * dk if self._by_row else heads, seed + 4))
        if self._by_row:
            g = g.reshape(n, heads, dk)
            g[0, 0, :2] = (-200.0, 0.0)  # forgotten, and kept
        return [q, k, v, g, 1 / (1 + np.exp(_noise(n, heads, seed + 5)))]

    def node(self, ctx: Context, rows: Sequence[Tensor], table: Sequence[Tensor], states: Tensor | None) -> Tensor:
        q, k, v, g, beta = rows
        return ops.gated_delta_net(
            q, k, v, g, beta, *table, states, grouped=self._grouped, eps=self._eps, instructions=self.instructions
        )

    def expected(self, rows: Sequence[Any], segments: Any, states: Any) -> Any:
        q, k, v, g, beta = rows
        if self._eps is not None:
            q, k = (x / np.sqrt((x**2).sum(-1, keepdims=True) + self._eps) for x in (q, k))
            q = q / q.shape[-1] ** 0.5
        return ref.gated_delta_net(q, k, v, g, beta, segments, states, grouped=self._grouped)


class Scan(Operation):
    def __init__(self, backend: Backend, d_state: int, groups: int, dim: int, heads: int, *, skip: bool) -> None:
        self.width, self.state_size = dim * heads, ssm_state_size(dim, d_state, heads)
        self._sizes = (d_state, groups, dim, heads)
        self.a = -np.abs(_noise(1, heads)[0])
        self.d = _noise(1, heads, 1)[0] if skip else None
        super().__init__(backend)

    def inputs(self, n: int, seed: int = 0) -> list[Floats]:
        d_state, groups, dim, heads = self._sizes
        x = _noise(n, self.width, seed + 1).reshape(n, heads, dim)
        b, c = (_noise(n, groups * d_state, seed + at).reshape(n, groups, d_state) for at in (2, 3))
        return [x, np.abs(_noise(n, heads, seed + 4)), b, c]

    def node(self, ctx: Context, rows: Sequence[Tensor], table: Sequence[Tensor], states: Tensor | None) -> Tensor:
        x, dt, b, c = rows
        a, d = ctx.from_floats(self.a), None if self.d is None else ctx.from_floats(self.d)
        return ops.ssm_scan(x, dt, a, b, c, *table, states, d=d, instructions=self.instructions)

    def expected(self, rows: Sequence[Any], segments: Any, states: Any) -> Any:
        x, dt, b, c = rows
        d = np.zeros(len(self.a)) if self.d is None else self.d
        return ref.ssm_scan(x, dt, self.a.astype(np.float64), b, c, d, segments, states)


OPERATIONS: dict[str, Callable[[Backend], Operation]] = {
    "conv-1": lambda b: Convolution(b, 1, 2),
    "conv-63": lambda b: Convolution(b, 63, 3),
    "conv-1200": lambda b: Convolution(b, 1200, 3),
    "conv-150-4": lambda b: Convolution(b, 150, 4),
    "conv-200-silu": lambda b: Convolution(b, 200, 4, silu=True),
    "conv-70-gated": lambda b: Convolution(b, 70, 3, gated=True),
    "conv-600-gated": lambda b: Convolution(b, 600, 4, gated=True),
    "delta-7": lambda b: DeltaNet(b, 7, 1, 1, 1, grouped=False),
    "delta-48-tiled": lambda b: DeltaNet(b, 48, 2, 24, 6, grouped=False),
    "delta-48-grouped": lambda b: DeltaNet(b, 48, 2, 24, 6, grouped=True),
    "delta-7-by-row": lambda b: DeltaNet(b, 7, 1, 5, 2, by_row=True),
    "delta-48-by-row": lambda b: DeltaNet(b, 48, 4, 24, 4, by_row=True),
    "delta-48-unit": lambda b: DeltaNet(b, 48, 2, 24, 6, eps=1e-3),
    "delta-7-by-row-unit": lambda b: DeltaNet(b, 7, 1, 5, 2, by_row=True, eps=0.5),
    "delta-128-by-row": lambda b: DeltaNet(b, 128, 2, 128, 2, by_row=True),
    "delta-128": lambda b: DeltaNet(b, 128, 2, 128, 2, grouped=False),
    "ssm-5": lambda b: Scan(b, 5, 1, 1, 1, skip=False),
    "ssm-32": lambda b: Scan(b, 32, 2, 20, 6, skip=True),
    "ssm-128": lambda b: Scan(b, 128, 1, 80, 3, skip=True),
}
each_operation = pytest.mark.parametrize("name", OPERATIONS)


def laid_out(segments: Sequence[Segment]) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    rows = [row for segment in segments for row in segment[0]]
    ends = np.cumsum([len(segment[0]) for segment in segments])
    bounds = [(int(end) - len(segment[0]), int(end)) for end, segment in zip(ends, segments, strict=True)]
    slots = [segment[1:] for segment in segments]
    return np.array(rows, np.int32), np.array(bounds, np.int32), np.array(slots, np.int32)


def _noise(n: int, width: int, seed: int = 0) -> Floats:
    return np.random.default_rng([n, width, seed]).standard_normal((n, width)).astype(np.float32)


@each_operation
def test_several_sequences_in_one_batch(backend: Backend, name: str) -> None:
    """Rows in any order; a new sequence, one that goes on, one of a single row, one whose state is kept twice."""
    operation = OPERATIONS[name](backend)
    rows = operation.inputs(11)
    segments: list[Segment] = [([3, 0, 8], NONE, 0), ([1], 1, NONE), ([2, 4], NONE, 2), ([5, 6, 7, 9, 10], 2, 3)]
    states = operation.noise.astype(np.float64)
    expected = operation.expected([part.astype(np.float64) for part in rows], laid_out(segments), states)
    found = operation.run(rows, segments)
    np.testing.assert_allclose(found, expected.reshape(found.shape), atol=1e-5 * (1 + np.abs(expected).max()))
    np.testing.assert_allclose(operation.states.numpy(), states, atol=1e-5 * (1 + np.abs(states).max()))
    untouched = operation.states.numpy()[[1, 4]] == operation.noise[[1, 4]]
    assert untouched.all(), "what is read or free stays as it is"


@pytest.mark.parametrize("threads", [1, 2])
@each_operation
def test_any_cut_gives_the_same_bits(name: str, threads: int) -> None:
    """In several batches, in several segments, and beside another sequence."""
    with Backend(BackendParams(threads=threads, gpu_layers=0)) as backend:
        operation = OPERATIONS[name](backend)
        x, other = operation.inputs(9), operation.inputs(2, seed=7)
        whole = operation.run(x, [(list(range(9)), NONE, 0)])
        left = operation.states.numpy()[0]
        for cut in range(1, 9):
            first = operation.run([part[:cut] for part in x], [(list(range(cut)), NONE, 1)])
            second = operation.run([part[cut:] for part in x], [(list(range(9 - cut)), 1, 2)])
            assert np.concatenate((first, second)).tobytes() == whole.tobytes(), cut
            assert operation.states.numpy()[2].tobytes() == left.tobytes(), cut
            segments: list[Segment] = [(list(range(cut)), NONE, 1), (list(range(cut, 9)), 1, 2), ([9, 10], 4, 3)]
            found = operation.run([np.concatenate(pair) for pair in zip(x, other, strict=True)], segments)
            assert found[:9].tobytes() == whole.tobytes(), cut
            assert operation.states.numpy()[2].tobytes() == left.tobytes(), cut


@pytest.mark.parametrize("threads", [1, 2])
@each_operation
def test_a_state_that_is_changed_in_place_has_the_same_bits(
    name: str, threads: int, record_property: RecordProperty
) -> None:
    with Backend(BackendParams(threads=threads, gpu_layers=0)) as backend:
        operation = OPERATIONS[name](backend)
        x = operation.inputs(9)
        for operation.instructions in every(RECURRENT, recurrent_instructions(), record_property):
            whole = operation.run(x, [(list(range(9)), NONE, 0)])
            for begin, end in pairwise((0, 4, 5, 6, 9)):
                piece = [part[begin:end] for part in x]
                found = operation.run(piece, [(list(range(end - begin)), 1 if begin else NONE, 1)])
                assert found.tobytes() == whole[begin:end].tobytes(), begin
            assert operation.states.numpy()[1].tobytes() == operation.states.numpy()[0].tobytes()
            assert (operation.states.numpy()[2:] == operation.noise[2:]).all()


def test_a_long_scan_of_heads_that_keep_and_that_forget(backend: Backend, record_property: RecordProperty) -> None:
    """More tokens than are computed at once, and scales that become small: after some tokens, and with each."""
    scan = Scan(backend, 37, 1, 40, 4, skip=True)
    scan.a[:] = (0, -1e-3, -3, -90)
    rows, n = scan.inputs(70), 70
    states = scan.noise.astype(np.float64)
    expected = scan.expected([part.astype(np.float64) for part in rows], laid_out([(list(range(n)), 4, 0)]), states)
    for scan.instructions in every(RECURRENT, recurrent_instructions(), record_property):
        whole = scan.run(rows, [(list(range(n)), 4, 0)])
        np.testing.assert_allclose(whole, expected.reshape(whole.shape), atol=1e-5 * (1 + np.abs(expected).max()))
        left = scan.states.numpy()[0]
        np.testing.assert_allclose(left, states[0], rtol=1e-4, atol=1e-5 * (1 + np.abs(states[0]).max()))
        for begin, end in pairwise((0, 1, 16, 31, 33, 65, n)):
            piece = [part[begin:end] for part in rows]
            found = scan.run(piece, [(list(range(end - begin)), 1 if begin else 4, 1)])
            assert found.tobytes() == whole[begin:end].tobytes(), (scan.instructions, begin)
        assert scan.states.numpy()[1].tobytes() == left.tobytes()


@each_operation
def test_without_states_every_segment_begins_anew(backend: Backend, name: str) -> None:
    operation = OPERATIONS[name](backend)
    x = operation.inputs(6)
    both = operation.run(x, [([0, 1, 2], 0, 0), ([3, 4, 5], 0, 0), ([], 0, 0)], stored=False)
    assert (operation.states.numpy() == operation.noise).all()
    for begin in (0, 3):
        alone = operation.run([part[begin : begin + 3] for part in x], [([0, 1, 2], NONE, NONE)])
        assert both[begin : begin + 3].tobytes() == alone.tobytes()


@each_operation
def test_all_instruction_sets_give_the_same_bits(name: str, backend: Backend, record_property: RecordProperty) -> None:
    operation = OPERATIONS[name](backend)
    rows = operation.inputs(11)
    segments: list[Segment] = [([3, 0, 8], NONE, 0), ([1], 1, NONE), ([2, 4], NONE, 2), ([5, 6, 7, 9, 10], 2, 3)]
    results = set()
    for operation.instructions in every(RECURRENT, recurrent_instructions(), record_property):
        results.add(operation.run(rows, segments).tobytes() + operation.states.numpy().tobytes())
    assert len(results) == 1


def test_every_size_of_inputs_of_silu(backend: Backend) -> None:
    """Also where exp(-x) is more than floats hold."""
    x = np.concatenate([-np.geomspace(1e-30, 3e38, 500), np.geomspace(1e-30, 3e38, 500), [0]]).astype(np.float32)
    conv = Convolution(backend, len(x), 2, silu=True)
    conv.weight[:], conv._bias = (0, 1), np.zeros(len(x), np.float32)
    exact = x.astype(np.float64) / (1 + np.exp(-np.maximum(x.astype(np.float64), -700)))
    np.testing.assert_allclose(conv.run([x[None]], [([0], NONE, NONE)])[0], exact, rtol=1e-6, atol=1e-35)


SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "causal_conv": {"x": (8, 4), "weight": (3, 8)},
    "gated_delta_net": {"q": (16, 2, 4), "k": (16, 2, 4), "v": (5, 4, 4), "g": (4, 4), "beta": (4, 4)},
    "ssm_scan": {"x": (5, 4, 4), "dt": (4, 4), "a": (4,), "b": (16, 2, 4), "c": (16, 2, 4)},
}
STATES = {"causal_conv": 16, "gated_delta_net": 320, "ssm_scan": 324}


def _call(ctx: Context, name: str, other: dict[str, tuple[str, tuple[int, ...]]]) -> None:
    shapes = {**SHAPES[name], "rows": (4,), "bounds": (2, 2), "slots": (2, 2), "states": (STATES[name], 3)}
    kinds = {part: "i32" if part in ("rows", "bounds", "slots") else "f32" for part in shapes}
    getattr(ops, name)(*(ctx.zeros(*other.get(part, (kinds[part], shape))) for part, shape in shapes.items()))


REFUSALS: list[tuple[str, dict[str, Any], str]] = [
    ("causal_conv", {"x": ("f16", (8, 4))}, "x is f32"),
    ("causal_conv", {"weight": ("f32", (3, 7))}, r"the weight is f32 \[3, 8\]"),
    ("causal_conv", {"weight": ("f32", (17, 8))}, "up to 16 taps"),
    ("causal_conv", {"states": ("f32", (15, 3))}, r"states is f32 \[16, slots\]"),
    ("causal_conv", {"rows": ("i32", (3,))}, r"rows are i32 \[4\]"),
    ("causal_conv", {"slots": ("i32", (2, 3))}, "bounds and slots i32"),
    ("causal_conv", {"bounds": ("f32", (2, 2))}, "bounds and slots i32"),
    ("gated_delta_net", {"q": ("f32", (16, 1, 4))}, r"q is f32 \[16, 2, 4\]"),
    ("gated_delta_net", {"q": ("f32", (257, 2, 4)), "k": ("f32", (257, 2, 4))}, "up to 256 numbers; got 257"),
    ("gated_delta_net", {"q": ("f32", (16, 3, 4)), "k": ("f32", (16, 3, 4))}, "4 heads cannot share 3"),
    ("gated_delta_net", {"g": ("f32", (4, 3))}, r"g is f32 \[4, 4\]"),
    ("gated_delta_net", {"g": ("f32", (16, 4, 3))}, r"g is f32 \[4, 4\]"),
    ("gated_delta_net", {"g": ("f32", (16, 2, 4))}, r"g is f32 \[4, 4\]"),
    ("gated_delta_net", {"beta": ("f16", (4, 4))}, "beta is f32"),
    ("gated_delta_net", {"states": ("f32", (319, 3))}, r"states is f32 \[320, slots\]"),
    ("ssm_scan", {"dt": ("f32", (3, 4))}, r"dt is f32 \[4, 4\]"),
    ("ssm_scan", {"a": ("f32", (3,))}, "a is f32 with 4 numbers"),
    ("ssm_scan", {"c": ("f32", (16, 1, 4))}, r"c is f32 \[16, 2, 4\]"),
    ("ssm_scan", {"b": ("f32", (272, 2, 4)), "c": ("f32", (272, 2, 4))}, "up to 256"),
    ("ssm_scan", {"rows": ("i32", (3,))}, r"rows are i32 \[4\]"),
]


@pytest.mark.parametrize(("name", "other", "message"), REFUSALS, ids=[f"{r[0]}-{r[1]}" for r in REFUSALS])
def test_refusals(ctx: Context, name: str, other: dict[str, Any], message: str) -> None:
    _call(ctx, name, {})
    with pytest.raises(ShapeError, match=message):
        _call(ctx, name, other)


def test_gated_rows_have_three_parts(ctx: Context) -> None:
    rest = [ctx.zeros("f32", (3, 8)), *(ctx.zeros("i32", shape) for shape in ((4,), (2, 2), (2, 2)))]
    ops.causal_conv(ctx.zeros("f32", (24, 4)), *rest, gated=True)
    for width in (8, 25):
        with pytest.raises(ShapeError):
            ops.causal_conv(ctx.zeros("f32", (width, 4)), *rest, gated=True)
    with pytest.raises(ShapeError, match="not both"):
        ops.causal_conv(ctx.zeros("f32", (24, 4)), *rest, gated=True, silu=True)


@pytest.mark.parametrize("wrong", [{"rows": 4}, {"bounds": 5}, {"slots": SLOTS + 1}, {"slots": -1}], ids=str)
def test_numbers_out_of_range_are_refused_before_anything_is_computed(backend: Backend, wrong: dict[str, int]) -> None:
    conv = Convolution(backend, 8, 3)
    with Context(backend) as ctx:
        names = {"rows": (4,), "bounds": (2, 1), "slots": (2, 1)}
        values = [np.full(shape[::-1], wrong.get(name, 0), np.int32) for name, shape in names.items()]
        out = ops.causal_conv(
            ctx.from_floats(_noise(4, 8)), ctx.from_floats(conv.weight), *map(ctx.from_ints, values), conv.states
        )
        ctx.forward(out)
        with pytest.raises(ShapeError, match="row numbers are 0 to"):
            ctx.compute()
