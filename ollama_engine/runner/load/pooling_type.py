"""How a model's texts are pooled to one vector, as its file says."""

from __future__ import annotations

from typing import cast, get_args

from ollama_engine.config import OneVector, Pooling
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.ml.metadata import Metadata

__all__ = ["default_pooling", "model_pooling", "read_pooling"]


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
