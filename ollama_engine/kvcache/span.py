"""Chooses the run of cells that a masked step reads, so that one graph serves many steps. Pure arithmetic.

Attention reads from the lowest to the highest cell of the batch's sequences; cells outside cost nothing. A graph is
reused while the run stays the same, so the edges of the run move in coarse steps.
"""

from __future__ import annotations

from typing import NamedTuple

from ollama_engine.input import Int32Array

STEPS = 64
"""Decoding steps that one run should last. In a composite of two caches the edges move at different steps, so 62 of 64
steps reuse their graph: more than 95 %."""


class CellSpan(NamedTuple):
    """Cells `begin` to before `end`."""

    begin: int
    end: int

    @property
    def n(self) -> int:
        return self.end - self.begin


class SpanPolicy:
    """For a cache of `n_cells` cells, whose runs begin and end at multiples of `padding`.

    A decoding step takes one cell per row, so the edges lie on a grid that is coarse enough for `STEPS` steps. Cells
    beyond those in use are masked: attention over few rows skips them quickly, but prompts pay for them in full. So
    prompts get the finest grid.
    """

    def __init__(self, n_cells: int, padding: int) -> None:
        self._n_cells = n_cells
        self._padding = padding

    def whole(self) -> CellSpan:
        """All cells: the worst case."""
        return CellSpan(0, self._n_cells)

    def choose(self, needed: CellSpan, n_rows: int, *, decoding: bool, before: CellSpan) -> CellSpan:
        """The run to read, which contains `needed`; `before` is the run of the previous step.

        When decoding, the previous run stays while it contains `needed` and is at most 1.5 times as long as a new run.
        Without that its lower edge would move whenever a window drops its oldest cells, or when batches of different
        sequences alternate.
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
    """Whether each sequence has one row, as in a step where all requests decode."""
    return len(set(sequences.tolist())) == len(sequences)
