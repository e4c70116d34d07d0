"""Pooling as a model's file defines it, and defaults without such a definition."""

from __future__ import annotations

from typing import cast, get_args

from ollama_engine.config import OneVector, Pooling
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml.gguf.metadata import Metadata

__all__ = ["default_pooling", "model_pooling", "read_pooling"]


def read_pooling(metadata: Metadata, key: str = "pooling_type") -> Pooling | None:
    """The pooling in the file, or None. Raises UnsupportedModelError for an unknown number."""
    number, names = metadata.u32(key, None), get_args(Pooling)
    if number is None:
        return None
    if number >= len(names):
        raise UnsupportedModelError(
            f"{metadata.key(key)} is {number}; known: 0 to {len(names) - 1} ({', '.join(names)})"
        )
    return cast(Pooling, names[number])


def default_pooling(said: Pooling | None, *, encoder: bool) -> Pooling | None:
    """The default pooling: that of the file; None for a model that only ranks.

    Without one, or with "none", it is the mean for an encoder, as in sentence-transformers, and the last token for a
    generative model, the only one that has seen the whole text.
    """
    if said == "rank":
        return None
    return said if said in get_args(OneVector) else "mean" if encoder else "last"


def model_pooling(metadata: Metadata, *, encoder: bool) -> Pooling | None:
    """`default_pooling` of a model's file. Raises for an encoder with an unknown number, as `read_pooling` does.

    For a generative model an unknown number is None, because the model has other uses.
    """
    try:
        return default_pooling(read_pooling(metadata), encoder=encoder)
    except ModelFormatError:
        if encoder:
            raise
        return None
