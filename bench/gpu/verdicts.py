"""Is what a device computed what the CPU computed? Pure: figures of two answers, and limits that say so.

Differences are in standard deviations of the CPU's logits: so they mean the same for tiny random models and published
ones. Something that is computed wrongly differs by about one of them; roundings by the limits at most.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

CACHE_LIMITS: Mapping[str, float] = {"f32": 0.05, "f16": 0.05, "bf16": 0.2, "q8_0": 0.2, "q4_0": 0.4}
"""Type of the cache -> the largest difference of a logit. For float32, GPUs may multiply with 10 bits (TF32)."""
RECURRENT = 0.1
"""The limit for recurrent models, where it is larger: a state keeps what was rounded. On the CPU, weights rounded to 10
bits alone make 0.03 to 0.08 of models that are small."""
QUANTIZED = 0.35
"""The limit for quantized weights, where it is larger: the CPU rounds activations to 8 bits, and other devices do not,
or otherwise; each flip of a rounding goes on through the layers. 0.28 is the most that was found (docs/gpu.md)."""
MIXTURE = 0.4
"""Likewise for mixtures of experts: of two experts whose probabilities are nearly equal, a device may choose the other
one for a token. 0.36 was found, in one token of 40 (docs/gpu.md)."""
MEDIAN_SHARE = 0.2
"""The share of the limit that the median of all differences may be: of roundings, many are small and few are large."""


@dataclass(frozen=True)
class Answer:
    """A greedy answer: its tokens, and for each the log-probabilities of the likeliest ones, best first."""

    tokens: tuple[int, ...]
    top: tuple[Mapping[int, float], ...]


@dataclass(frozen=True)
class Row:
    """One model and setting. `None` where there is no such figure."""

    model: str
    setting: str
    equal: int = 0
    """How many tokens are the CPU's, from the first."""
    tokens: int = 0
    """How many the CPU gives."""
    lead: float | None = None
    """Where they part: how far the CPU's token is before the device's."""
    answer: float | None = None
    """The largest difference of a log-probability of tokens that are equal."""
    median: float | None = None
    """The median difference of the logits of a prompt."""
    largest: float | None = None
    limit: float = 0.0
    error: str = ""
    """Why there are no figures."""

    @property
    def passed(self) -> bool:
        """Logits are near, and tokens part only where differences as large as the limit can turn them around.

        A log-probability moves with its own logit and with the sum over all, a lead with two logits: both by twice as
        much at most.
        """
        if self.error:
            return False
        near = (self.largest or 0.0) <= self.limit and (self.median or 0.0) <= MEDIAN_SHARE * self.limit
        near = near and (self.answer or 0.0) <= 2 * self.limit
        return near and (self.equal == self.tokens or (self.lead or 0.0) <= 2 * self.limit)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def limit(cache: str, *, quantized: bool = False, mixture: bool = False, recurrent: bool = False) -> float:
    """The largest difference that roundings explain, for this type of the cache and kind of model."""
    kinds = ((quantized, QUANTIZED), (mixture, MIXTURE), (recurrent, RECURRENT))
    return max(CACHE_LIMITS[cache], *(most if of_kind else 0.0 for of_kind, most in kinds))


def equal_tokens(cpu: Sequence[int], device: Sequence[int]) -> int:
    """How many tokens are the same, from the first."""
    pairs = enumerate(zip(cpu, device, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(cpu), len(device)))


def lead(top: Mapping[int, float], token: int) -> float:
    """How far the best token is before this one; infinite where it is not among the best."""
    return max(top.values()) - top[token] if token in top else math.inf


def compare_answers(cpu: Answer, device: Answer, deviation: float) -> dict[str, Any]:
    """The figures of a Row that two answers give. `deviation`: standard deviation of the CPU's logits."""
    equal = equal_tokens(cpu.tokens, device.tokens)
    moved = [abs(cpu.top[i][cpu.tokens[i]] - device.top[i].get(cpu.tokens[i], -math.inf)) for i in range(equal)]
    moved = [math.inf if math.isnan(apart) else apart for apart in moved]  # or `max` may pass it over
    parted = equal < min(len(cpu.tokens), len(device.tokens))
    apart = lead(cpu.top[equal], device.tokens[equal]) / deviation if parted else None
    if equal < len(cpu.tokens) and not parted:
        apart = math.inf  # the device's answer ended by itself, which is a token that is not in the list
    return {
        "equal": equal, "tokens": len(cpu.tokens), "lead": apart,
        "answer": max(moved) / deviation if moved else None,
    }  # fmt: skip


def compare_logits(cpu: NDArray[np.float32], device: NDArray[np.float32]) -> dict[str, float]:
    """The figures of a Row that the logits of one prompt give, [tokens, vocabulary] each."""
    apart = np.abs(cpu.astype(np.float64) - device) / cpu.std(dtype=np.float64)
    if not np.isfinite(apart).all():
        return {"median": math.inf, "largest": math.inf}
    return {"median": float(np.median(apart)), "largest": float(apart.max())}


def summary(rows: Sequence[Row]) -> str:
    """One sentence, such as "72 of 73 comparisons passed"."""
    return f"{sum(row.passed for row in rows)} of {len(rows)} comparisons passed"
