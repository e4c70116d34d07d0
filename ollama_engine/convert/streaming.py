"""Turns planned tensors into the bytes of the file, a piece at a time.

No more is held than one piece, or, where a transform wants a whole matrix, that matrix twice.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import Sizes
from ollama_engine.convert.outtype import as_bytes
from ollama_engine.convert.plan import PlannedTensor
from ollama_engine.convert.source.elements import first_nan, to_float32
from ollama_engine.convert.source.tensors import StoredTensor, rows_of

__all__ = ["tensor_bytes"]

logger = logging.getLogger(__name__)

PIECE = 1 << 17
"""Elements that are read at once: even as float32 they stay in a core's cache."""


def tensor_bytes(planned: PlannedTensor, dtype: str, sizes: Sizes) -> Iterator[NDArray[np.uint8]]:
    """The data of a tensor as elements of `dtype`, in pieces. Logs a warning for weights that are no numbers."""
    if planned.made is not None:
        yield as_bytes(planned.made, "F32", dtype)
        return
    for part in planned.parts:
        warned = False
        for raw in _pieces(part, planned):
            nan = None if warned else first_nan(raw, part.dtype)
            if nan is not None:
                logger.warning("%s: tensor %s holds NaN; the model is damaged", part.home, part.name)
                warned = True
            yield from _converted(raw, part.dtype, planned, dtype, sizes)


def _pieces(part: StoredTensor, planned: PlannedTensor) -> Iterator[NDArray[np.generic]]:
    n, width = rows_of(part.shape)
    whole = planned.transform is not None and not planned.transform.entrywise
    step = n if whole else max(1, PIECE // max(1, width))
    for start in range(0, n, max(1, step)):
        yield part.read(start, min(n, start + step))


def _converted(
    raw: NDArray[np.generic], source: str, planned: PlannedTensor, dtype: str, sizes: Sizes
) -> Iterator[NDArray[np.uint8]]:
    if planned.transform is None:
        yield as_bytes(raw, source, dtype)
        return
    if planned.transform.arithmetic:
        raw, source = to_float32(raw, source), "F32"
    moved = planned.transform.apply(raw, sizes)
    del raw
    n, width = rows_of(moved.shape)
    step = max(1, PIECE // max(1, width))
    for start in range(0, n, step):
        yield as_bytes(moved[start : start + step], source, dtype)
