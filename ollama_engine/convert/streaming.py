"""Turns planned tensors into the bytes of the file, a piece at a time.

No more is held than a few pieces for each thread, or, where a transform wants a whole matrix, that matrix twice.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import Sizes
from ollama_engine.convert.outtype import as_bytes
from ollama_engine.convert.plan import PlannedTensor
from ollama_engine.convert.source.elements import first_nan, to_float32
from ollama_engine.convert.source.tensors import StoredTensor, rows_of
from ollama_engine.convert.transforms import Transform
from ollama_engine.convert.workers import Workers

__all__ = ["tensor_bytes"]

logger = logging.getLogger(__name__)

PIECE = 1 << 20
"""Elements that a thread takes at once: less would have the threads wait for each other more often."""
HELD = 1 << 24
"""Elements that all threads together hold, but for a single piece that is larger."""

Job = Callable[[], tuple[bool, NDArray[np.uint8]]]
"""Makes a piece; see `_piece`."""


def tensor_bytes(planned: PlannedTensor, dtype: str, sizes: Sizes, workers: Workers) -> Iterator[NDArray[np.uint8]]:
    """The data of a tensor as elements of `dtype`, in pieces. Logs a warning for weights that are no numbers."""
    if planned.made is not None:
        yield as_bytes(planned.made, "F32", dtype)
        return
    for part in planned.parts:
        warned = False
        for sound, data in workers.results(_jobs(part, planned.transform, dtype, sizes), _at_once(part.shape)):
            if not sound and not warned:
                logger.warning("%s: tensor %s holds NaN; the model is damaged", part.home, part.name)
                warned = True
            yield data


def _jobs(part: StoredTensor, transform: Transform | None, dtype: str, sizes: Sizes) -> Iterator[Job]:
    """Pieces are read by those who convert them, but for a matrix whose rows change places."""
    if transform is not None and not transform.entrywise:
        moved, source = _transformed(part.read(), part.dtype, transform, sizes)
        for start, stop in _ranges(moved.shape):
            yield partial(_finished, moved[start:stop], source, dtype)
        return
    for start, stop in _ranges(part.shape):
        yield partial(_piece, part, start, stop, transform, dtype, sizes)


def _ranges(shape: tuple[int, ...]) -> Iterator[tuple[int, int]]:
    """Entries of the first dimension that make a piece."""
    n, width = rows_of(shape)
    step = max(1, PIECE // max(1, width))
    return ((start, min(n, start + step)) for start in range(0, n, step))


def _at_once(shape: tuple[int, ...]) -> int:
    """Pieces in work together; an entry of the first dimension is never cut, and may be a matrix of its own."""
    return max(1, HELD // max(PIECE, rows_of(shape)[1]))


def _piece(
    part: StoredTensor, start: int, stop: int, transform: Transform | None, dtype: str, sizes: Sizes
) -> tuple[bool, NDArray[np.uint8]]:
    """(whether all are numbers, the bytes)."""
    raw = part.read(start, stop)
    if transform is None:
        return _finished(raw, part.dtype, dtype)
    moved, source = _transformed(raw, part.dtype, transform, sizes)
    return _finished(moved, source, dtype)


def _transformed(
    raw: NDArray[np.generic], source: str, transform: Transform, sizes: Sizes
) -> tuple[NDArray[np.generic], str]:
    """The new elements and their type."""
    if transform.arithmetic:
        raw, source = to_float32(raw, source), "F32"
    return transform.apply(raw, sizes), source


def _finished(values: NDArray[np.generic], source: str, dtype: str) -> tuple[bool, NDArray[np.uint8]]:
    return first_nan(values, source) is None, as_bytes(values, source, dtype)
