"""BestLogits: a device finds the best logits of each row, so that few rows leave it whole.

A row of a vocabulary of 150,000 is 600 KB. Where another device than the CPU computes the output, most of that would be
sent back for nothing: most samplers need some of the best logits only (`Sampler.best_needed`). The graph then ends with
one tensor of those, and the logits stay where they are. A row is fetched whole where its best are not enough: many
equal logits, or NaN and +infinity, which the sampler reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ollama_engine.input import FloatArray, Int32Array
from ollama_engine.ml import ops
from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.ml.ops.best import supports_best_k

__all__ = [
    "LEAST_VOCABULARY", "LEVELS", "BestLogits", "RowCounts", "best_rows", "level_of", "make_best_logits", "sparse_row",
    "whole_runs",
]  # fmt: skip

LEVELS = (16, 128, 256)
"""How many of the best logits a graph may find. 16: greedy answers, with ties. 128: `top_k` of 40, as is the default,
and 64 recent tokens with penalties. 256: 2 KB a row, which still is little beside what a message costs."""

LEAST_VOCABULARY = 16384
"""In smaller vocabularies a row, of up to 64 KB, takes about as long to send as a device takes for one more operation
(some 10 us each over PCIe)."""


@dataclass(slots=True)
class RowCounts:
    """Number of rows of which the best logits were enough, and of rows that were fetched whole."""

    reduced: int = 0
    whole: int = 0


def level_of(needed: Sequence[int]) -> int:
    """How many best logits the graph of a step should find for rows that need so many each; 0: none.

    A need of 0 is a whole row, and so is one beyond the largest level.
    """
    most = max((n for n in needed if n <= LEVELS[-1]), default=0)
    return next(level for level in LEVELS if level >= most) if most else 0


def best_rows(logits: Tensor, k: int) -> Tensor:
    """The k best logits of each row of f32 [n_vocab, rows], in any order: f32 [2 * k + 1, rows].

    First their token ids, then their values, at last the sum of the row, which is NaN where it holds NaN. One tensor,
    since each one that is fetched is waited for; ids are below 2**24, and so are exact as float32.
    """
    n_vocab, rows = logits.dim(0), logits.dim(1)
    ids = ops.best_k(logits, k)
    values = ops.get_rows(ops.reshape(logits, 1, n_vocab, rows), ids)
    best = ops.concat(ops.cast(ids, "f32"), ops.reshape(values, k, rows), 0)
    return ops.concat(best, ops.sum_rows(logits), 0)


def sparse_row(best: FloatArray, needed: int, n_ids: int) -> tuple[Int32Array, FloatArray] | None:
    """Ids and logits that stand for a whole row, given a row of `best_rows`; None where they cannot.

    These are all logits above some value, and `needed` at least, counting tokens below `n_ids` only. The least of
    `best` may have equals that are not in it, so it is left out, unless it is -infinity.
    """
    k = len(best) // 2
    values = best[k:-1]
    least = values.min()
    above = values > least
    ids = best[:k][above].astype(np.int32)
    if np.isnan(best[-1]) or not values.max() < np.inf:
        return None
    enough = least == -np.inf or np.count_nonzero(ids < n_ids) >= needed
    return (ids, values[above]) if enough else None


def whole_runs(whole: Sequence[bool]) -> Iterator[tuple[int, int]]:
    """(begin, end) of the rows side by side that are wanted whole."""
    begin = 0
    for wanted, run in groupby(whole):
        end = begin + len(list(run))
        if wanted:
            yield begin, end
        begin = end


def make_best_logits(device: Device, n_vocab: int, n_ids: int) -> BestLogits | None:
    """For logits [n_vocab, rows] that this device computes; None where rows leave it whole. `n_ids`: see BestLogits."""
    if device.kind == "cpu" or n_vocab < LEAST_VOCABULARY:
        return None
    if not all(supports_best_k(device, n_vocab, level) for level in LEVELS):
        return None
    return BestLogits(n_ids)


class BestLogits:
    """Reads the logits of steps. `n_ids`: the tokens that samplers look at; others may have logits, too."""

    def __init__(self, n_ids: int) -> None:
        self._n_ids = n_ids
        self._rows: FloatArray = np.empty((0, 0), np.float32)
        self.known: Sequence[Int32Array | None] | None = None
        """Of each row that is read now, the ids whose logits are above -infinity; None for a row that was fetched."""
        self.counts = RowCounts()

    @contextmanager
    def read(self, ctx: Context, logits: Tensor, best: Tensor, needed: Sequence[int]) -> Iterator[FloatArray]:
        """Rows of logits float32 [rows, n_vocab], valid within the block. Samplers that need so many of the best of
        each draw what they would draw from the whole rows; logits that were not fetched are -infinity.
        """
        rows = self._empty_rows(len(needed), logits.dim(0))
        found = best.numpy().reshape(len(needed), -1)
        given = [sparse_row(row, n, self._n_ids) if n else None for row, n in zip(found, needed, strict=True)]
        self.known = [None if part is None else part[0][part[0] < self._n_ids] for part in given]
        self.counts.whole += given.count(None)
        self.counts.reduced += len(given) - given.count(None)
        try:
            for row, part in enumerate(given):
                if part is not None:
                    rows[row, part[0]] = part[1]
            for begin, end in whole_runs([part is None for part in given]):
                ctx.read_rows(logits, begin, rows[begin:end])
            yield rows
        finally:
            self.known = None
            for row, part in enumerate(given):
                rows[row, slice(None) if part is None else part[0]] = -np.inf

    def _empty_rows(self, n: int, n_vocab: int) -> FloatArray:
        """Rows of -infinity. They are kept, since filling them costs as much as sampling from them."""
        if self._rows.shape[0] < n or self._rows.shape[1] != n_vocab:
            self._rows = np.full((n, n_vocab), -np.inf, np.float32)
        return self._rows[:n]
