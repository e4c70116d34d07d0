"""Checks of a Sampler's arguments that need no C types; the others are in _sample.pyx."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Mapping
from typing import SupportsIndex

from ollama_engine.errors import ConfigError, Option
from ollama_engine.sample.params import SAMPLERS

__all__ = ["bias_arrays", "chain_links", "checked_n_vocab", "checked_top", "describe"]


def checked_n_vocab(n_vocab: SupportsIndex, most: int) -> int:
    number = operator.index(n_vocab)
    if not 1 <= number <= most:
        raise ConfigError(f"n_vocab must be from 1 to {most}, got {n_vocab!r}")
    return number


def checked_top(top: SupportsIndex, n_vocab: int) -> int:
    """`top`, but no more than there are tokens."""
    number = operator.index(top)
    if number < 0:
        raise ConfigError(f"top must be >= 0, got {top!r}")
    return min(number, n_vocab)


def bias_arrays(logit_bias: Mapping[int, float], n_vocab: int) -> tuple[array[int], array[float]]:
    """Tokens as int32 and their biases as float32."""
    for token in logit_bias:
        if token >= n_vocab:
            raise ConfigError(Option("logit_bias"), f" names token {token}, the vocabulary ends at {n_vocab - 1}")
    return array("i", logit_bias.keys()), array("f", logit_bias.values())


def chain_links(samplers: tuple[str, ...]) -> list[int]:
    """The names as csrc/sample/params.h counts them."""
    return [SAMPLERS.index(name) for name in samplers]


def describe(value: object) -> str:
    """Type and shape of what should have been an array, for an error."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return type(value).__name__
    return f"{getattr(value, 'dtype', type(value).__name__)} {list(shape)}"
