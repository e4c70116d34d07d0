"""SamplingKeywords: the fields of SamplingParams as keyword arguments, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypedDict

__all__ = ["SamplingKeywords"]


class SamplingKeywords(TypedDict, total=False):
    """`SamplingParams` says what each does. A test holds the two together: no type checker reads a dataclass so."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    dynatemp_range: float
    dynatemp_exponent: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Iterable[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    samplers: Iterable[str]
    seed: int | None
    max_tokens: int | None
    stop: Iterable[str] | None
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float] | None
    logprobs: int | None
    prompt_logprobs: int | None
