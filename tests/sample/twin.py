"""The sampler once more, in plain numpy and whole sorts: what csrc/sample/sample.c has to agree with, token for
token.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ollama_engine.sample import SamplingParams

FloatRow = npt.NDArray[np.float32]
F32 = np.float32
MASK32 = 0xFFFFFFFF


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK32, (a >> 32) ^ c3 ^ k1, a & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def random_bits(seed: int, draw: int) -> int:
    low, high, _, _ = philox4x32((draw & MASK32, draw >> 32, 0, 0), (seed & MASK32, seed >> 32))
    return high << 32 | low


def adjusted(logits: FloatRow, params: SamplingParams, history: Sequence[int]) -> FloatRow:
    out = logits.copy()
    window = len(history) if params.repeat_last_n == -1 else params.repeat_last_n
    recent = history[max(0, len(history) - window) :]
    with np.errstate(over="ignore"):
        for token, count in Counter(recent).items():
            x, penalty = out[token], F32(params.repeat_penalty)
            x = x / penalty if x > 0 else x * penalty
            out[token] = x - (F32(count) * F32(params.frequency_penalty) + F32(params.presence_penalty))
        out = np.minimum(out, np.finfo(F32).max)
        for token, bias in params.logit_bias.items():
            out[token] += F32(bias)
    return np.minimum(out, np.finfo(F32).max)


def weights(
    x: FloatRow, best: np.float32, inv_temperature: np.float32
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """The ranks and fixed-point weights that csrc/sample/dist.h defines."""
    with np.errstate(over="ignore"):
        d = np.clip((best - x) * inv_temperature, F32(0), F32(31.99))
    magic = F32(12582912.0)
    shifted = -d * F32(1.44269504) + magic
    n = shifted - magic
    r = (-d - n * F32(0.693359375)) - n * F32(-2.12194440e-4)
    p = np.full_like(r, F32(1) / F32(5040))
    for divisor in (720, 120, 24, 6, 2, 1, 1):
        p = p * r + F32(1) / F32(divisor)
    e = np.ldexp(p, n.astype(np.int32)).astype(np.float64)
    return (d * F32(2**24)).astype(np.int64), np.rint(e * 2.0**40).astype(np.uint64)


def inverse(temperature: float) -> np.float32:
    limits = np.finfo(F32)
    return F32(min(max(1.0 / temperature, float(limits.tiny)), float(limits.max)))


def kept(x: FloatRow, params: SamplingParams) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """The tokens that can be drawn, best first, and their weights."""
    tokens = np.flatnonzero(x > -np.inf)
    if params.top_k:
        tokens = tokens[np.lexsort((tokens, -x[tokens]))][: params.top_k]
    ranks, weight = weights(x[tokens], x[tokens].max(), inverse(params.temperature))
    order = np.lexsort((tokens, ranks))
    tokens, ranks, weight = tokens[order], ranks[order], weight[order]
    sums = np.cumsum(weight)
    size = len(tokens)
    if params.top_p < 1:
        target = max(1, math.ceil(params.top_p * float(int(sums[-1]))))
        size = min(size, int(np.searchsorted(sums, np.uint64(min(target, int(sums[-1]))), side="left")) + 1)
    if params.min_p > 0:
        size = min(size, int(np.count_nonzero(ranks <= math.floor(-math.log(params.min_p) * 2.0**24))))
    return tokens[:size], weight[:size]


def sample(
    logits: FloatRow,
    params: SamplingParams,
    seed: int,
    draw: int,
    history: Iterable[int] = (),
    allowed: npt.NDArray[np.bool_] | None = None,
) -> int | None:
    """The token, or None when every one that is allowed is at -inf."""
    masked = logits if allowed is None else np.where(allowed, logits, F32(-np.inf))
    x = adjusted(masked, params, list(history))
    if not np.any(x > -np.inf):
        return None
    if params.temperature == 0:
        return int(np.argmax(x))
    tokens, weight = kept(x, params)
    sums = np.cumsum(weight)
    target = (random_bits(seed, draw) * int(sums[-1]) >> 64) + 1
    return int(tokens[np.searchsorted(sums, np.uint64(target), side="left")])
