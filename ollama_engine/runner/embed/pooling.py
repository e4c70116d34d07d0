"""Pooling: how the hidden states of a text become one vector. Numbers only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast, get_args

import numpy as np
import numpy.typing as npt

from ollama_engine.config import OneVector, Pooling
from ollama_engine.errors import ConfigError, ModelFormatError, Option, UnsupportedModelError
from ollama_engine.ml.metadata import Metadata

__all__ = ["check_pooling", "default_pooling", "finish", "model_pooling", "pool", "pool_all", "read_pooling", "rows_of"]

FloatArray = npt.NDArray[np.float32]

SMALLEST = 1e-12
"""A vector that is shorter cannot be made one of length 1; it is divided by this (as in torch)."""


def read_pooling(metadata: Metadata, key: str = "pooling_type") -> Pooling | None:
    """What a file says; None where it does not. Raises UnsupportedModelError for a number that is none of them."""
    number, names = metadata.u32(key, None), get_args(Pooling)
    if number is None:
        return None
    if number >= len(names):
        raise UnsupportedModelError(
            f"{metadata.key(key)} is {number}; known: 0 to {len(names) - 1} ({', '.join(names)})"
        )
    return cast(Pooling, names[number])


def default_pooling(said: Pooling | None, *, encoder: bool) -> Pooling | None:
    """How texts are embedded unless told otherwise: as the file says; None for one that only ranks.

    Where it does not say, or names no way to one vector, an encoder takes the mean, as sentence-transformers does, and
    a model that writes the last token, the only one that has seen the whole text.
    """
    if said == "rank":
        return None
    return said if said in get_args(OneVector) else "mean" if encoder else "last"


def model_pooling(metadata: Metadata, *, encoder: bool) -> Pooling | None:
    """`default_pooling` of a model's file. A model that writes has other uses, so a number that nobody knows is None.

    For an encoder that raises as `read_pooling` does.
    """
    try:
        return default_pooling(read_pooling(metadata), encoder=encoder)
    except ModelFormatError:
        if encoder:
            raise
        return None


def check_pooling(value: object) -> Pooling:
    """Raise ConfigError for anything else."""
    if value not in get_args(Pooling):
        raise ConfigError(Option("pooling"), f" is one of {', '.join(get_args(Pooling))}, got {value!r}")
    return cast(Pooling, value)


def rows_of(n_tokens: int, pooling: Pooling) -> tuple[int, int]:
    """Rows [begin, end) of a text that its pooling reads. Raises ValueError for a text without tokens."""
    if n_tokens < 1:
        raise ValueError("a text has one token at least; of none, no row is its own")
    if pooling == "cls":
        return 0, 1
    return (n_tokens - 1 if pooling == "last" else 0), n_tokens


def pool(rows: FloatArray, pooling: Pooling) -> FloatArray:
    """The rows that `rows_of` tells, [n, n_embd] -> [n_embd], or [n, n_embd] for "none"."""
    if pooling == "none":
        return rows.copy()
    # Of one row, itself; sums of thousands are made with more digits than they end with.
    mean: FloatArray = rows.mean(axis=0, dtype=np.float64).astype(np.float32)
    return mean


def pool_all(rows: FloatArray, lengths: Sequence[int], poolings: Sequence[Pooling]) -> list[FloatArray]:
    """The same for texts of so many tokens, whose `rows_of` follow each other in `rows`."""
    vectors, at = [], 0
    for n, pooling in zip(lengths, poolings, strict=True):
        begin, end = rows_of(n, pooling)
        vectors.append(pool(rows[at : at + end - begin], pooling))
        at += end - begin
    return vectors


def finish(vectors: FloatArray, dimensions: int | None, *, normalize: bool) -> FloatArray:
    """The first `dimensions` numbers of vectors [..., n_embd], of length 1 with `normalize`.

    Vectors trained to be cut (Kusupati et al. 2022) are told apart by angle, so they are normalized after the cut.
    """
    cut = vectors[..., :dimensions]
    if not normalize:
        return cut
    lengths = np.sqrt(np.square(cut, dtype=np.float64).sum(axis=-1, keepdims=True))
    unit: FloatArray = (cut / np.maximum(lengths, SMALLEST)).astype(np.float32)
    return unit
