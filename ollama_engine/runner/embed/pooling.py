"""Pooling: how the hidden states of a text become one vector. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

import numpy as np
import numpy.typing as npt

from ollama_engine.config import Pooling
from ollama_engine.errors import ConfigError, Option

__all__ = ["check_pooling", "finish", "pool", "pool_all", "rows_of"]

FloatArray = npt.NDArray[np.float32]

SMALLEST = 1e-12
"""Smallest divisor when normalizing: a shorter vector is divided by this and stays short (as in torch)."""


def check_pooling(value: object) -> Pooling:
    """Return `value` if it is a Pooling; raise ConfigError otherwise."""
    if value not in get_args(Pooling):
        raise ConfigError(Option("pooling"), f" is one of {', '.join(get_args(Pooling))}, got {value!r}")
    return cast(Pooling, value)


def rows_of(n_tokens: int, pooling: Pooling) -> tuple[int, int]:
    """Rows [begin, end) of a text that its pooling reads. Raises ValueError for a text without tokens."""
    if n_tokens < 1:
        raise ValueError("a text has at least one token")
    if pooling == "cls":
        return 0, 1
    return (n_tokens - 1 if pooling == "last" else 0), n_tokens


def pool(rows: FloatArray, pooling: Pooling) -> FloatArray:
    """Pool the rows of `rows_of`: [n, n_embd] -> [n_embd], or [n, n_embd] for "none"."""
    if pooling == "none":
        return rows.copy()
    # The mean of one row is the row. Sums of thousands of rows use float64, more digits than the result has.
    mean: FloatArray = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


def pool_all(rows: FloatArray, lengths: Sequence[int], poolings: Sequence[Pooling]) -> list[FloatArray]:
    """`pool` for several texts, whose rows follow each other in `rows`."""
    vectors, at = [], 0
    for n, pooling in zip(lengths, poolings, strict=True):
        begin, end = rows_of(n, pooling)
        vectors.append(pool(rows[at : at + end - begin], pooling))
        at += end - begin
    return vectors


def finish(vectors: FloatArray, dimensions: int | None, *, normalize: bool) -> FloatArray:
    """The first `dimensions` numbers of vectors [..., n_embd], of length 1 with `normalize`.

    Shortened vectors (Kusupati et al. 2022) are compared by angle, so they are normalized after shortening.
    """
    cut = vectors[..., :dimensions]
    if not normalize:
        return cut
    lengths = np.sqrt(np.square(cut, dtype=np.float64).sum(axis=-1, keepdims=True))
    unit: FloatArray = (cut / np.maximum(lengths, SMALLEST)).astype(np.float32)
    return unit
