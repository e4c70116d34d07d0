"""Recurrent cache: states of layers whose memory has a fixed size (convolutions, state-space models, delta nets).

A step goes on from one state of each sequence, and writes the next ones into other slots; `StateSlots` says which. So
what is rolled back or shared is still there, and nothing is copied. A sequence can be resumed where a state is.

Where each sequence has one token, and none goes back before it, states are changed in place.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import ContextOverflowError
from ollama_engine.input import Batch, Int32Array
from ollama_engine.kvcache.base import CellUsage, GraphInputs, Segments
from ollama_engine.kvcache.config import LayerShape
from ollama_engine.kvcache.state_saving import StateSaver
from ollama_engine.kvcache.state_slots import Run, StateSlots
from ollama_engine.kvcache.state_store import StateStore
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor


@dataclass(frozen=True, slots=True)
class _Plan:
    """The segments of one batch, as numbers; see `Segments`."""

    rows: Int32Array
    bounds: Int32Array
    slots: Int32Array


class RecurrentStepCache:
    """Segments of one step, of sequences that begin with it and leave no state: for texts to embed."""

    def __init__(self) -> None:
        # -- current batch --
        self._n_tokens = 0
        self._n_segments = 0
        self._plan: _Plan | None = None
        # -- current graph --
        self._ctx: Context | None = None
        self._segments: Segments | None = None
        self._layer = 0

    # ** used by models ************************************************************************************************

    def set_layer(self, layer: int) -> None:
        self._layer = layer

    @property
    def segments(self) -> Segments:
        assert self._segments is not None, "the graph's inputs are made first"
        return self._segments

    def part(self, number: int) -> Tensor | None:
        """None: nothing is stored."""
        return None

    def written(self, result: Tensor) -> None:
        assert self._ctx is not None
        self._ctx.expand(result)

    rotation = 0

    @property
    def flash_attention(self) -> bool:
        """False: there is no attention."""
        return False

    def put(self, key: Tensor, value: Tensor) -> None:
        raise ValueError("this layer has a recurrent state, and stores no keys and values")

    def get(self) -> tuple[Tensor, Tensor, Tensor]:
        raise ValueError("this layer has a recurrent state, and stores no keys and values")

    # ** used by the executor ******************************************************************************************

    @property
    def _none(self) -> int:
        """The slot number that stands for none."""
        return 0

    def begin(self, batch: Batch) -> None:
        runs = runs_of(batch)
        self._use(plan_segments(batch, runs, {}, {}, self._none), len(batch))

    def _use(self, plan: _Plan, n_tokens: int) -> None:
        self._plan, self._n_tokens, self._n_segments = plan, n_tokens, plan.bounds.shape[0]

    def roll_back(self, batch: Batch) -> None:
        """Does nothing: nothing is stored."""

    def worst_cases(self, n_tokens: int) -> Iterator[None]:
        """All graphs of as many tokens take about the same memory."""
        self._plan, self._n_tokens, self._n_segments = None, n_tokens, _padded(n_tokens)
        yield

    @property
    def shape_key(self) -> tuple[int, ...]:
        """Numbers of tokens and of segments, which are a power of two."""
        return (self._n_tokens, self._n_segments)

    def build_inputs(self, ctx: Context) -> GraphInputs:
        """Make the inputs of a new graph: `Segments`."""
        self._ctx = ctx
        self._segments = Segments(
            ctx.input("i32", (self._n_tokens,), name="state_rows"),
            ctx.input("i32", (2, self._n_segments), name="state_bounds"),
            ctx.input("i32", (2, self._n_segments), name="state_slots"),
        )
        return GraphInputs(self._segments.tensors, partial(self._write, self._segments))

    def _write(self, segments: Segments) -> None:
        assert self._plan is not None
        segments.rows.set(self._plan.rows)
        segments.bounds.set(self._plan.bounds)
        segments.slots.set(self._plan.slots)


class RecurrentCache(RecurrentStepCache):
    """States of `layers` in `n_slots` slots. `devices` gives the backend's device number for each layer.

    Raises NoMemoryError when a device is too small.
    """

    shiftable = None

    def __init__(self, backend: Backend, layers: Sequence[LayerShape], devices: Sequence[int], n_slots: int) -> None:
        super().__init__()
        self._store = StateStore(backend, [layer.state for layer in layers], devices, n_slots)
        self.slots = StateSlots(n_slots)
        self.saveable = StateSaver(self.slots, self._store)
        self.recurrent = self
        self.defragmentable = None

    # ** used by models ************************************************************************************************

    def part(self, number: int) -> Tensor:
        return self._store.part(self._layer, number)

    # ** used by the executor ******************************************************************************************

    @property
    def _none(self) -> int:
        return self.slots.n_slots

    def begin(self, batch: Batch) -> None:
        """Find slots for the states that the batch leaves. Raises ContextOverflowError, changing nothing."""
        self.require_room(batch)
        runs = runs_of(batch)
        reads = {sequence: self.slots.read(sequence, run.first) for sequence, run in runs.items()}
        states = self.slots.place(runs, in_place=batch.in_place)
        self._use(plan_segments(batch, runs, reads, states, self._none), len(batch))

    def _write(self, segments: Segments) -> None:
        assert self._plan is not None
        changed, slots = self.slots.launched(), self._plan.slots
        for segment, (read, write) in enumerate(slots.tolist()):
            if read == write < self._none and write not in changed:
                slots[segment, 1] = self._none  # the state has its old name again: its sequence has left the step
        super()._write(segments)

    def roll_back(self, batch: Batch) -> None:
        """Forget the states that the batch left.

        A sequence goes on from the one before them, unless a step behind this one has begun, which gave it up, or this
        one was launched and changed it in place.
        """
        for sequence, first in batch.first_positions().items():
            self.slots.remove(sequence, first)

    # ** used by the runner ********************************************************************************************

    @property
    def room(self) -> int:
        """Unlimited: tokens take no room here."""
        return sys.maxsize

    def require_room(self, batch: Batch) -> None:
        """Raise ContextOverflowError where `begin` would. Changes nothing."""
        firsts = batch.first_positions()
        free = self.slots.available(firsts)
        if len(firsts) > free and not (batch.in_place and self.slots.changeable(runs_of(batch))):
            raise ContextOverflowError(
                f"the states of {len(firsts)} sequences do not fit: {free} of {self.slots.n_slots} slots are free"
            )

    def share(self, source: int, target: int, end: int) -> None:
        """Share the states of `source` up to position `end` with `target`, which is empty."""
        self.slots.share(source, target, end)

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether there is a state at `position`, or the sequence begins there."""
        return self.slots.latest(sequence, position) == position

    def latest(self, sequence: int, most: int) -> int:
        """The highest position up to `most` with a state, or 0."""
        return self.slots.latest(sequence, most)

    def hold(self, sequence: int) -> None:
        self.slots.hold(sequence)

    def release(self, sequence: int, length: int) -> None:
        self.slots.release(sequence, length)

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget the states that depend on tokens from position `begin` on; none where `end` is not behind it."""
        if end is None or end > begin:
            self.slots.remove(sequence, begin)

    def scrub(self) -> None:
        """Does nothing: a state is written as a whole before it is read."""

    def check(self) -> None:
        self.slots.check()

    @property
    def usage(self) -> CellUsage:
        """Nothing: states are no cells, and their slots fill up with checkpoints."""
        return CellUsage()

    @property
    def nbytes(self) -> dict[str, int]:
        return self._store.nbytes

    @property
    def mask_bytes(self) -> int:
        """0: no row sees any other."""
        return 0

    def close(self) -> None:
        self._store.close()


def runs_of(batch: Batch) -> dict[int, Run]:
    """The run of each sequence in a batch, {sequence: run}. Its positions have no gaps."""
    sequences, positions = batch.sequences.tolist(), batch.positions.tolist()
    if batch.checkpoints is None and batch.returns is None and len(set(sequences)) == len(sequences):
        return {sequence: Run(at, at + 1) for sequence, at in zip(sequences, positions, strict=True)}
    bounds: dict[int, tuple[int, int]] = {}
    for sequence, position in zip(sequences, positions, strict=True):
        first, end = bounds.get(sequence, (position, position + 1))
        bounds[sequence] = (min(first, position), max(end, position + 1))
    kept: tuple[dict[int, set[int]], ...] = ({}, {})
    for places, rows in zip(kept, (batch.checkpoints, batch.returns), strict=True):
        for row in () if rows is None else rows.tolist():
            places.setdefault(sequences[row], set()).add(positions[row] + 1)
    return {sequence: Run(*run, *(places.get(sequence, ()) for places in kept)) for sequence, run in bounds.items()}


def plan_segments(
    batch: Batch, runs: Mapping[int, Run], reads: Mapping[int, int | None], writes: Mapping[int, Mapping[int, int]],
    none: int,
) -> _Plan:  # fmt: skip
    """The segments of a batch: each sequence's run, cut at the positions whose states are written."""
    if len(runs) == len(batch):
        order = np.arange(len(batch), dtype=np.int32)
    else:
        order = np.lexsort((batch.positions, batch.sequences)).astype(np.int32)
    bounds: list[tuple[int, int]] = []
    slots: list[tuple[int, int]] = []
    begins = _begins(batch, order, runs)
    for sequence, run in runs.items():
        first, states, at = run.first, writes.get(sequence, {run.end: none}), begins[sequence]
        read = reads.get(sequence)
        for begin, until in pairwise((first, *states)):
            bounds.append((at + begin - first, at + until - first))
            slots.append((none if read is None else read, states[until]))
            read = states[until]
    spare = _padded(len(bounds)) - len(bounds)
    return _Plan(order, _pairs(bounds + [(0, 0)] * spare), _pairs(slots + [(none, none)] * spare))


def _begins(batch: Batch, order: Int32Array, runs: Mapping[int, Run]) -> dict[int, int]:
    """Where each sequence begins in `order`."""
    if len(runs) == len(batch):
        return {sequence: at for at, sequence in enumerate(batch.sequences.tolist())}
    begins: dict[int, int] = {}
    at = 0
    for sequence in sorted(runs):
        begins[sequence] = at
        at += runs[sequence].end - runs[sequence].first
    return begins


def _pairs(pairs: list[tuple[int, int]]) -> npt.NDArray[np.int32]:
    return np.array(pairs, dtype=np.int32)


def _padded(n: int) -> int:
    """The power of two from `n` on, so that a graph serves batches with other numbers of segments."""
    return 1 << (n - 1).bit_length()
