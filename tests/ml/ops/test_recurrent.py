"""Recurrent operations: against numpy, the same bits however sequences are cut, and what they refuse."""

from __future__ import annotations

from collections.abc import Sequence
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
from tests.ml.ops import reference as ref

Floats = NDArray[np.float32]
Segment = tuple[list[int], int, int]
"""Rows, the slot that is read, the slot that is written."""
SLOTS = 5
NONE = SLOTS


class Convolution:
    """An operation with its weights and its states, which are noise at first."""

    def __init__(self, backend: Backend, channels: int, taps: int) -> None:
        rng = np.random.default_rng([channels, taps])
        self.channels, self.taps = channels, taps
        self.weight = rng.standard_normal((channels, taps)).astype(np.float32)
        self.noise = rng.standard_normal((SLOTS, channels * (taps - 1))).astype(np.float32)
        self._backend = backend
        self._storage = Storage(backend, 1)
        self.states = self._storage.add("states", "f32", (channels * (taps - 1), SLOTS))
        self._storage.allocate(0)
        self.states.set(self.noise)

    def run(self, x: Floats, segments: Sequence[Segment], *, stored: bool = True) -> Floats:
        rows, bounds, slots = laid_out(segments)
        with Context(self._backend) as ctx:
            inputs = ctx.from_floats(x)
            weight = ctx.from_floats(self.weight)
            table = [ctx.input("i32", array.shape[::-1]) for array in (rows, bounds, slots)]
            out = ops.causal_conv(inputs, weight, *table, self.states if stored else None)
            ctx.forward(out)
            ctx.alloc()
            for tensor, array in zip(table, (rows, bounds, slots), strict=True):
                tensor.set(array)
            ctx.compute()
            found: Floats = out.numpy().reshape(x.shape)
            return found


def laid_out(segments: Sequence[Segment]) -> tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]:
    rows = [row for segment in segments for row in segment[0]]
    ends = np.cumsum([len(segment[0]) for segment in segments])
    bounds = [(int(end) - len(segment[0]), int(end)) for end, segment in zip(ends, segments, strict=True)]
    slots = [segment[1:] for segment in segments]
    return np.array(rows, np.int32), np.array(bounds, np.int32), np.array(slots, np.int32)


def noise(n: int, channels: int) -> Floats:
    return np.random.default_rng([n, channels]).standard_normal((n, channels)).astype(np.float32)


SHAPES = [(1, 2), (63, 3), (64, 4), (200, 3)]


@pytest.mark.parametrize(("channels", "taps"), SHAPES)
def test_several_sequences_in_one_batch(backend: Backend, channels: int, taps: int) -> None:
    """Rows in any order; a new sequence, one that goes on, one of a single row, one whose state is kept twice."""
    conv, x = Convolution(backend, channels, taps), noise(11, channels)
    segments: list[Segment] = [([3, 0, 8], NONE, 0), ([1], 1, NONE), ([2, 4], NONE, 2), ([5, 6, 7, 9, 10], 2, 3)]
    states = conv.noise.astype(np.float64)
    expected = ref.causal_conv(x.astype(np.float64), conv.weight.T.astype(np.float64), *laid_out(segments), states)
    np.testing.assert_allclose(conv.run(x, segments), expected, atol=1e-5)
    np.testing.assert_allclose(conv.states.numpy(), states, atol=1e-6)
    assert (conv.states.numpy()[[1, 4]] == conv.noise[[1, 4]]).all(), "what is read or free stays as it is"


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize(("channels", "taps"), SHAPES)
def test_any_cut_gives_the_same_bits(channels: int, taps: int, threads: int) -> None:
    """In several batches, in segments of one, and beside another sequence."""
    x = noise(9, channels)
    with Backend(BackendParams(threads=threads, gpu_layers=0)) as backend:
        conv = Convolution(backend, channels, taps)
        whole = conv.run(x, [(list(range(9)), NONE, 0)])
        left = conv.states.numpy()[0]
        for cut in range(1, 9):
            both = [conv.run(x[:cut], [(list(range(cut)), NONE, 1)]), conv.run(x[cut:], [(list(range(9 - cut)), 1, 2)])]
            assert np.concatenate(both).tobytes() == whole.tobytes(), cut
            assert conv.states.numpy()[2].tobytes() == left.tobytes(), cut
            segments: list[Segment] = [(list(range(cut)), NONE, 1), (list(range(cut, 9)), 1, 2), ([9, 10], 4, 3)]
            found = conv.run(np.concatenate((x, noise(2, channels))), segments)
            assert found[:9].tobytes() == whole.tobytes(), cut
            assert conv.states.numpy()[2].tobytes() == left.tobytes(), cut


def test_without_states_every_segment_begins_anew(backend: Backend) -> None:
    conv, x = Convolution(backend, 70, 3), noise(6, 70)
    both = conv.run(x, [([0, 1, 2], 0, 0), ([3, 4, 5], 0, 0), ([], 0, 0)], stored=False)
    assert (conv.states.numpy() == conv.noise).all()
    for begin in (0, 3):
        alone = conv.run(x[begin : begin + 3], [([0, 1, 2], NONE, NONE)])
        assert both[begin : begin + 3].tobytes() == alone.tobytes()


def _call(ctx: Context, **other: Any) -> None:
    shapes: dict[str, tuple[int, ...]] = {
        "x": (8, 4),
        "weight": (3, 8),
        "rows": (4,),
        "bounds": (2, 2),
        "slots": (2, 2),
        "states": (16, 3),
    }
    kinds = {name: "i32" if name in ("rows", "bounds", "slots") else "f32" for name in shapes}
    made = {name: ctx.zeros(*other.get(name, (kinds[name], shape))) for name, shape in shapes.items()}
    ops.causal_conv(*made.values())


REFUSALS: list[tuple[dict[str, Any], str]] = [
    ({"x": ("f16", (8, 4))}, "x is f32"),
    ({"weight": ("f32", (3, 7))}, r"the weight is f32 \[3, 8\]"),
    ({"weight": ("f32", (17, 8))}, "up to 16 taps"),
    ({"states": ("f32", (15, 3))}, r"states is f32 \[16, slots\]"),
    ({"rows": ("i32", (3,))}, r"rows are i32 \[4\]"),
    ({"slots": ("i32", (2, 3))}, "bounds and slots i32"),
    ({"bounds": ("f32", (2, 2))}, "bounds and slots i32"),
]


@pytest.mark.parametrize(("other", "message"), REFUSALS, ids=[str(r[0]) for r in REFUSALS])
def test_refusals(ctx: Context, other: dict[str, Any], message: str) -> None:
    _call(ctx)
    with pytest.raises(ShapeError, match=message):
        _call(ctx, **other)


@pytest.mark.parametrize("wrong", [{"rows": 4}, {"bounds": 5}, {"slots": SLOTS + 1}, {"slots": -1}], ids=str)
def test_numbers_out_of_range_are_refused_before_anything_is_computed(backend: Backend, wrong: dict[str, int]) -> None:
    conv = Convolution(backend, 8, 3)
    with Context(backend) as ctx:
        names = {"rows": (4,), "bounds": (2, 1), "slots": (2, 1)}
        values = [np.full(shape[::-1], wrong.get(name, 0), np.int32) for name, shape in names.items()]
        out = ops.causal_conv(
            ctx.from_floats(noise(4, 8)), ctx.from_floats(conv.weight), *map(ctx.from_ints, values), conv.states
        )
        ctx.forward(out)
        with pytest.raises(ShapeError, match="row numbers are 0 to"):
            ctx.compute()
