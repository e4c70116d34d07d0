"""Turns planned tensors into the bytes of the file, a piece at a time.

Pieces are held as far ahead of the writer as `workers` allows. Where a transform wants a whole matrix, that matrix is
held twice while it is transformed, and once until its last piece is taken: its pieces are views of it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import Sizes
from ollama_engine.convert.outtype import as_bytes
from ollama_engine.convert.plan import PlannedTensor
from ollama_engine.convert.source.elements import first_nan, to_float32
from ollama_engine.convert.source.tensors import StoredTensor, rows_of
from ollama_engine.convert.transforms import Transform
from ollama_engine.convert.workers import Job, Workers

__all__ = ["file_bytes"]

logger = logging.getLogger(__name__)

PIECE = 1 << 20
"""Elements that a thread takes at once, or one entry of the first dimension where that has more. With fewer, threads
wait for each other more often."""


@dataclass(frozen=True)
class Piece:
    """Bytes of one tensor of the file; `damaged` is their source where it holds NaN."""

    data: NDArray[np.uint8]
    damaged: StoredTensor | None = None


def file_bytes(
    planned: Iterable[tuple[PlannedTensor, str]], sizes: Sizes, workers: Workers
) -> Iterator[NDArray[np.uint8]]:
    """The data of tensors as elements of the type named beside each, one after the other, in pieces.

    No piece spans two tensors. Logs a warning for weights that are NaN.
    """
    warned: set[tuple[str, str]] = set()
    for piece in workers.results(job for plan, dtype in planned for job in _jobs(plan, dtype, sizes)):
        part = piece.damaged
        if part is not None and (part.home, part.name) not in warned:
            logger.warning("%s: tensor %s holds NaN; the model is damaged", part.home, part.name)
            warned.add((part.home, part.name))
        yield piece.data


def _jobs(planned: PlannedTensor, dtype: str, sizes: Sizes) -> Iterator[Job[Piece]]:
    """Pieces are read by those who convert them, but for a matrix whose rows change places."""
    made, transform = planned.made, planned.transform
    if made is not None:
        yield Job(lambda: Piece(as_bytes(made, "F32", dtype)), made.size)
        return
    for part in planned.parts:
        if transform is not None and not transform.entrywise:
            moved, source = _transformed(part.read(), part.dtype, transform, sizes)
            for start, stop, cost in _ranges(moved.shape):
                yield Job(partial(_finished, part, moved[start:stop], source, dtype), cost)
        else:
            for start, stop, cost in _ranges(part.shape):
                yield Job(partial(_piece, part, start, stop, transform, dtype, sizes), cost)


def _ranges(shape: tuple[int, ...]) -> Iterator[tuple[int, int, int]]:
    """(first, end, elements) of the entries of the first dimension that make a piece."""
    n, width = rows_of(shape)
    if width == 0:
        return
    step = max(1, PIECE // width)
    for start in range(0, n, step):
        stop = min(n, start + step)
        yield start, stop, (stop - start) * width


def _piece(part: StoredTensor, start: int, stop: int, transform: Transform | None, dtype: str, sizes: Sizes) -> Piece:
    raw = part.read(start, stop)
    if transform is None:
        return _finished(part, raw, part.dtype, dtype)
    moved, source = _transformed(raw, part.dtype, transform, sizes)
    return _finished(part, moved, source, dtype)


def _transformed(
    raw: NDArray[np.generic], source: str, transform: Transform, sizes: Sizes
) -> tuple[NDArray[np.generic], str]:
    """The new elements and their type."""
    if transform.arithmetic:
        raw, source = to_float32(raw, source), "F32"
    return transform.apply(raw, sizes), source


def _finished(part: StoredTensor, values: NDArray[np.generic], source: str, dtype: str) -> Piece:
    return Piece(as_bytes(values, source, dtype), None if first_nan(values, source) is None else part)
