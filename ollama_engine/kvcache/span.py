"""How much of the cache a step reads: a run of cells, chosen so that one graph serves many steps. Numbers only.

Attention reads from the lowest to the highest cell that a sequence of the batch has; what others keep costs nothing.
The graph holds as long as the run does, so its edges move in steps.
"""

from __future__ import annotations

from typing import NamedTuple

from ollama_engine.input import Int32Array

STEPS = 64
"""Decoding steps that one run should last. Of a composite of two caches, whose edges move at different steps, 62 of 64
then find their graph: more than 95 %."""


class CellSpan(NamedTuple):
    """Cells `begin` to before `end`."""

    begin: int
    end: int

    @property
    def n(self) -> int:
        return self.end - self.begin


class SpanPolicy:
    """For a cache of `n_cells` cells, whose runs begin and end at multiples of `padding`.

    When all sequences decode, each step takes as many cells as there are rows; the edges lie on a grid that is coarse
    enough for `STEPS` steps. Cells beyond those in use are masked, which attention over few rows passes over quickly;
    prompts pay for them in full, and get the finest grid.
    """

    def __init__(self, n_cells: int, padding: int) -> None:
        self._n_cells = n_cells
        self._padding = padding

    def whole(self) -> CellSpan:
        """All cells: the worst case."""
        return CellSpan(0, self._n_cells)

    def choose(self, needed: CellSpan, n_rows: int, *, decoding: bool, before: CellSpan) -> CellSpan:
        """The run to read where `needed` must be; `before` is that of the previous step.

        When decoding, the previous one stays as long as it serves and is not half as long again as a new one would be:
        the lower edge would move whenever a window drops its oldest cells, or when batches of several sequences take
        turns.
        """
        step = self._step(n_rows) if decoding else self._padding
        fresh = CellSpan(needed.begin // step * step, min(-(-needed.end // step) * step, self._n_cells))
        serves = before.begin <= needed.begin and needed.end <= before.end
        if decoding and serves and 2 * before.n <= 3 * fresh.n:
            return before
        return fresh

    def _step(self, n_rows: int) -> int:
        return -(-STEPS * n_rows // self._padding) * self._padding


def is_decoding(sequences: Int32Array) -> bool:
    """Whether rows of these sequences are one token of each: what steps of running requests look like."""
    return len(set(sequences.tolist())) == len(sequences)
