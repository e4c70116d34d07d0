"""Checks of a Sampler's arguments that need no C types; the others are in _buffers.pyx and _sample.pyx."""

from __future__ import annotations

import operator
from array import array
from collections.abc import Iterable, Mapping
from typing import Any, SupportsIndex

from ollama_engine.errors import ConfigError, Option, TokenizerError
from ollama_engine.sample.breakers import SequenceBreakers
from ollama_engine.sample.params import SAMPLERS, SamplingParams

__all__ = [
    "bias_arrays", "check_breakers", "checked_list", "checked_n_vocab", "checked_tokens", "checked_top", "describe",
    "native_params",
]  # fmt: skip

_NATIVE = (
    "min_keep", "temperature", "dynatemp_range", "dynatemp_exponent", "top_n_sigma", "typical_p", "top_p", "min_p",
    "xtc_probability", "xtc_threshold", "adaptive_target", "adaptive_decay", "mirostat_tau", "mirostat_eta", "mirostat",
    "top_k", "dry_multiplier", "dry_base", "dry_allowed_length", "dry_penalty_last_n", "repeat_last_n",
    "repeat_penalty", "presence_penalty", "frequency_penalty",
)  # fmt: skip
"""Members of oe_sample_params that are options of the same name."""


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


def check_breakers(breakers: object, n_vocab: int) -> None:
    """Raise TypeError and ConfigError for what are no SequenceBreakers of this vocabulary."""
    if not isinstance(breakers, SequenceBreakers):
        raise TypeError(f"breakers must be SequenceBreakers, got {type(breakers).__name__}")
    if breakers.n_vocab != n_vocab:
        raise ConfigError(f"breakers of {breakers.n_vocab} tokens do not fit a vocabulary of {n_vocab}")


def checked_list(samplers: Iterable[object], kind: type) -> list[object]:
    """The samplers, all of this type; raises TypeError for another one."""
    owners = list(samplers)
    for owner in owners:
        if not isinstance(owner, kind):
            raise TypeError(f"samplers must hold {kind.__name__}, got {type(owner).__name__}")
    return owners


def checked_tokens(ids: Iterable[SupportsIndex], n_vocab: int) -> array[int]:
    """The ids as int32 (C int). Raises TokenizerError for one outside of the vocabulary, TypeError for no integer."""
    values = [operator.index(value) for value in ids]
    if values and not 0 <= min(values) <= max(values) < n_vocab:
        wrong = next(value for value in values if not 0 <= value < n_vocab)
        raise TokenizerError(f"token ids must be from 0 to {n_vocab - 1}, got {wrong}")
    return array("i", values)


def native_params(params: SamplingParams, seed: int, n_links: int) -> dict[str, Any]:
    """oe_sample_params of csrc/sample/params.h, member by member; its chain has room for n_links samplers."""
    chain = [SAMPLERS.index(name) for name in params.samplers]
    native = {name: getattr(params, name) for name in _NATIVE}
    return native | {"seed": seed, "n_chain": len(chain), "chain": chain + [0] * (n_links - len(chain))}


def describe(value: object) -> str:
    """Type and shape of what should have been an array, for an error."""
    shape = getattr(value, "shape", None)
    if shape is None:
        return type(value).__name__
    return f"{getattr(value, 'dtype', type(value).__name__)} {list(shape)}"
