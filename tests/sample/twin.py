"""The sampler once more, in plain numpy and whole sorts: what csrc/sample has to agree with, token for token."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from ollama_engine.sample import SamplingParams

FloatRow = npt.NDArray[np.float32]
F32 = np.float32
MASK32 = 0xFFFFFFFF
ONE = 2.0**24
"""The rank of a distance of 1."""
LIMIT = 1 << 29


# -- random numbers ----------------------------------------------------------------------------------------------------


def philox4x32(counter: Sequence[int], key: Sequence[int]) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK32, (a >> 32) ^ c3 ^ k1, a & MASK32
        k0, k1 = (k0 + 0x9E3779B9) & MASK32, (k1 + 0xBB67AE85) & MASK32
    return c0, c1, c2, c3


def random_bits(seed: int, draw: int) -> tuple[int, int]:
    """64 bits to draw with, and 64 for XTC."""
    c0, c1, c2, c3 = philox4x32((draw & MASK32, draw >> 32, 0, 0), (seed & MASK32, seed >> 32))
    return c1 << 32 | c0, c3 << 32 | c2


# -- numbers that are the same everywhere ------------------------------------------------------------------------------


def log(x: float) -> float:
    """As csrc/sample/exact_math.h."""
    m, e = math.frexp(x)
    if m < float.fromhex("0x1.6a09e667f3bcdp-1"):
        m, e = m * 2, e - 1
    z = (m - 1) / (m + 1)
    total = 0.0
    for k in range(21, 2, -2):
        total = (total + 1.0 / k) * (z * z)
    high, low = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
    return e * high + (2 * z + (2 * z * total + e * low))


def exp(x: float) -> float:
    if not x > -700:
        return 0.0
    x = min(x, 700.0)
    high, low = float.fromhex("0x1.62e42fee00000p-1"), float.fromhex("0x1.a39ef35793c76p-33")
    n = math.floor(x / float.fromhex("0x1.62e42fefa39efp-1") + 0.5)
    r = (x - n * high) - n * low
    total = 1.0
    for k in range(16, 0, -1):
        total = total * r / k + 1.0
    return math.ldexp(total, n)


def power(base: float, exponent: float) -> float:
    if exponent == 0:
        return 1.0
    return exp(exponent * log(base)) if base > 0 else 0.0


def weights(
    x: FloatRow, best: np.float32, inv_temperature: np.float32
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
    """The ranks and fixed-point weights that csrc/sample/logit_kernels.h defines."""
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


# -- candidates --------------------------------------------------------------------------------------------------------


@dataclass
class Pool:
    """Candidates in any order; `weigh` brings them into the order of probability."""

    tokens: npt.NDArray[np.int64]
    x: FloatRow
    inverse: float = 1.0
    """1 / temperature."""
    ranks: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))
    weight: npt.NDArray[np.uint64] = field(default_factory=lambda: np.zeros(0, np.uint64))

    def keep(self, which: npt.NDArray[np.bool_] | npt.NDArray[np.int64] | slice) -> None:
        self.tokens, self.x = self.tokens[which], self.x[which]
        if len(self.ranks):
            self.ranks, self.weight = self.ranks[which], self.weight[which]

    def weigh(self) -> int:
        """Sorts by (rank, token) and returns the sum of the weights."""
        limits = np.finfo(F32)
        inverse = F32(min(max(self.inverse, float(limits.tiny)), float(limits.max)))
        self.ranks, self.weight = weights(self.x, self.x.max(), inverse)
        self.keep(np.lexsort((self.tokens, self.ranks)))
        return int(self.weight.sum())

    def keep_best(self, k: int) -> None:
        self.keep(np.lexsort((self.tokens, -self.x))[:k])

    def surprise(self) -> tuple[int, int]:
        """Sums of weights and of weight * distance."""
        total = self.weigh()
        return total, int((self.weight * self.ranks.astype(np.uint64) >> np.uint64(24)).sum())


# -- samplers ----------------------------------------------------------------------------------------------------------


def rank_of(p: float) -> int:
    return min(LIMIT, math.floor(-log(p) * ONE)) if p > 0 else LIMIT


def top_p(pool: Pool, params: SamplingParams) -> None:
    total, sums = pool.weigh(), np.cumsum(pool.weight)
    target = max(1, min(total, math.ceil(params.top_p * float(total))))
    size = int(np.searchsorted(sums, np.uint64(target), side="left")) + 1
    pool.keep(slice(max(size, params.min_keep)))


def min_p(pool: Pool, params: SamplingParams) -> None:
    pool.weigh()
    pool.keep(slice(max(int(np.count_nonzero(pool.ranks <= rank_of(params.min_p))), params.min_keep)))


def typical(pool: Pool, params: SamplingParams) -> None:
    total, distance = pool.surprise()
    center = int(float(distance) / float(total) * ONE + 0.5)
    pool.keep(np.lexsort((pool.tokens, np.abs(pool.ranks - center))))
    target = min(total, math.floor(params.typical_p * float(total)) + 1)
    size = int(np.searchsorted(np.cumsum(pool.weight), np.uint64(target), side="left")) + 1
    pool.keep(slice(max(size, params.min_keep)))


def xtc(pool: Pool, params: SamplingParams, random: int) -> None:
    if (random >> 11) * 2.0**-53 >= params.xtc_probability:
        return
    least = params.xtc_threshold * float(pool.weigh())
    before = max(0, int(np.count_nonzero(pool.weight.astype(np.float64) >= least)) - 1)
    if before and len(pool.tokens) - before >= params.min_keep:
        pool.keep(slice(before, None))


def top_n_sigma(pool: Pool, params: SamplingParams) -> None:
    x = pool.x.astype(np.float64)
    spread = float(x.max() - x.min())
    if not spread > 0:
        return
    factor = math.ldexp(1.0, 31 - math.frexp(spread)[1])
    steps = [int(min((x.max() - entry) * factor, 2147483647.0)) for entry in x]
    n = float(len(steps))
    mean = float(sum(steps)) / n
    high, low = sum(step * step >> 32 for step in steps), sum(step * step & MASK32 for step in steps)
    variance = (float(high) * 2.0**32 + float(low)) / n - mean * mean
    pool.keep(x >= float(x.max()) - params.top_n_sigma * (math.sqrt(max(0.0, variance)) / factor))


def temperature(pool: Pool, params: SamplingParams) -> None:
    wanted = params.temperature
    if params.dynatemp_range > 0:
        if len(pool.tokens) < 2:
            return
        total, distance = pool.surprise()
        entropy = log(total / 2.0**40) + float(distance) / float(total)
        low = max(0.0, params.temperature - params.dynatemp_range)
        flatness = power(entropy / log(float(len(pool.tokens))), params.dynatemp_exponent)
        wanted = low + (params.temperature + params.dynatemp_range - low) * flatness
    if wanted > 0:
        pool.inverse = min(pool.inverse * (1.0 / wanted), float(np.finfo(F32).max))
    else:
        pool.keep_best(1)


def mirostat(pool: Pool, params: SamplingParams, mu: float, n_vocab: int) -> None:
    total = pool.weigh()
    if params.mirostat == 2:
        most = math.floor((mu * float.fromhex("0x1.62e42fefa39efp-1") - log(total / 2.0**40)) * ONE)
        if most >= 0:
            pool.keep(pool.ranks <= most)
        else:
            pool.keep_best(1)
        return
    ranks = pool.ranks[np.lexsort((pool.tokens, -pool.x))][:100]
    products = squares = 0.0
    for i in range(len(ranks) - 1):
        t = log((i + 2) / (i + 1))
        products += t * (float(ranks[i + 1] - ranks[i]) / ONE)
        squares += t * t
    exponent = products / squares if squares else math.nan
    k = 1.0
    if exponent > 0 and exponent != 1:
        excess = exponent - 1
        k = power(excess * power(2.0, mu) / (1 - power(float(n_vocab), -excess)), 1 / exponent)
    pool.keep_best(min(max(1, int(min(k, n_vocab))), n_vocab))


# -- penalties ---------------------------------------------------------------------------------------------------------

Breakers = Sequence[Sequence[int]]


def recent(history: Sequence[int], window: int) -> list[int]:
    return list(history) if window == -1 else list(history)[max(0, len(history) - window) :]


def unbroken(history: Sequence[int], breakers: Breakers) -> int:
    """How many of the last tokens hold no breaker."""
    for place in range(len(history) - 1, -1, -1):
        here = [b for b in breakers if list(history[place : place + len(b)]) == list(b)]
        if here:
            return len(history) - place - max(map(len, here))
    return len(history)


def repetitions(history: Sequence[int], params: SamplingParams, breakers: Breakers) -> dict[int, int]:
    """Tokens that would continue a repetition, and how long the longest of those is."""
    seen = recent(history, params.dry_penalty_last_n)
    limit, found = unbroken(seen, breakers), dict[int, int]()
    if len(seen) <= params.dry_allowed_length or limit < params.dry_allowed_length:
        return {}
    for end in range(1, len(seen)):
        length = 0
        while length < min(end, limit) and seen[end - 1 - length] == seen[-1 - length]:
            length += 1
        if length >= max(1, params.dry_allowed_length) and [seen[end]] not in [list(b) for b in breakers]:
            found[seen[end]] = max(length, found.get(seen[end], 0))
    return found


def bounded(x: FloatRow) -> FloatRow:
    return np.minimum(x, np.finfo(F32).max)


def penalties(x: FloatRow, tokens: npt.NDArray[np.int64], params: SamplingParams, history: Sequence[int]) -> FloatRow:
    out = x.copy()
    place = {int(token): i for i, token in enumerate(tokens)}
    with np.errstate(over="ignore"):
        for token, count in Counter(recent(history, params.repeat_last_n)).items():
            if token in place:
                i, penalty = place[token], F32(params.repeat_penalty)
                value = out[i] / penalty if out[i] > 0 else out[i] * penalty
                out[i] = value - (F32(count) * F32(params.frequency_penalty) + F32(params.presence_penalty))
    return bounded(out)


def dry(
    x: FloatRow, tokens: npt.NDArray[np.int64], params: SamplingParams, history: Sequence[int], breakers: Breakers
) -> FloatRow:
    out = x.copy()
    place = {int(token): i for i, token in enumerate(tokens)}
    with np.errstate(over="ignore"):
        for token, length in repetitions(history, params, breakers).items():
            if token in place:
                penalty = params.dry_multiplier * exp((length - params.dry_allowed_length) * log(params.dry_base))
                out[place[token]] -= F32(min(penalty, float(np.finfo(F32).max)))
    return bounded(out)


# -- the whole ---------------------------------------------------------------------------------------------------------


@dataclass
class State:
    """The numbers that a sampler remembers beside its history."""

    mu: float
    adaptive_sum: float
    adaptive_weight: float

    @classmethod
    def of(cls, params: SamplingParams) -> State:
        decay = 1.0 - params.adaptive_decay
        return cls(2.0 * params.mirostat_tau, params.adaptive_target / decay, 1.0 / decay)


def is_on(name: str, params: SamplingParams, n_vocab: int) -> bool:
    cuts = not params.mirostat
    return {
        "penalties": params.repeat_last_n != 0
        and tuple(map(F32, (params.repeat_penalty, params.presence_penalty, params.frequency_penalty))) != (1, 0, 0),
        "dry": params.dry_multiplier != 0 and params.dry_penalty_last_n != 0,
        "top_n_sigma": cuts and params.top_n_sigma > 0,
        "top_k": cuts and 0 < params.top_k < n_vocab,
        "typ_p": cuts and params.typical_p < 1,
        "top_p": cuts and params.top_p < 1,
        "min_p": cuts and params.min_p > 0,
        "xtc": cuts and params.xtc_probability > 0 and params.xtc_threshold <= 0.5,
        "temperature": True,
        "adaptive_p": cuts and params.adaptive_target >= 0,
    }[name]


def biased(logits: FloatRow, params: SamplingParams, allowed: npt.NDArray[np.bool_] | None) -> FloatRow:
    x = logits.copy() if allowed is None else np.where(allowed, logits, F32(-np.inf))
    with np.errstate(over="ignore"):
        for token, bias in params.logit_bias.items():
            x[token] += F32(bias)
    return bounded(x)


def candidates(
    logits: FloatRow,
    params: SamplingParams,
    random: int,
    history: Sequence[int] = (),
    allowed: npt.NDArray[np.bool_] | None = None,
    breakers: Breakers = (),
    state: State | None = None,
) -> tuple[Pool, dict[int, float]] | None:
    """The pool that is drawn from, best first, and the probabilities that adaptive-p found; None without any."""
    x = biased(logits, params, allowed)
    pool = Pool(np.flatnonzero(x > -np.inf), x[x > -np.inf])
    state = state or State.of(params)
    before: dict[int, float] = {}
    greedy = only_best_matters(params, len(logits))
    cuts = {"typ_p": typical, "top_p": top_p, "min_p": min_p, "top_n_sigma": top_n_sigma, "temperature": temperature}
    for name in params.samplers:
        if not len(pool.tokens):
            return None
        if not is_on(name, params, len(logits)):
            continue
        if greedy and name not in ("penalties", "dry"):
            pool.keep_best(1)  # before tokens whose logits differ by less than weights can
        if name in ("penalties", "dry"):
            if pool.inverse != 1:
                most = float(np.finfo(F32).max)
                scaled = np.clip(pool.x.astype(np.float64) * pool.inverse, -most, most)
                pool = Pool(pool.tokens, scaled.astype(F32))
            penalized = (
                penalties(pool.x, pool.tokens, params, history)
                if name == "penalties"
                else dry(pool.x, pool.tokens, params, history, breakers)
            )
            pool = Pool(pool.tokens[penalized > -np.inf], penalized[penalized > -np.inf])
        elif name == "top_k":
            pool.keep_best(params.top_k)
        elif name == "xtc":
            xtc(pool, params, random)
        elif name == "adaptive_p":
            before = adapt(pool, params, state)
        else:
            cuts[name](pool, params)
    if not len(pool.tokens):
        return None
    if params.mirostat:
        mirostat(pool, params, state.mu, len(logits))
    pool.weigh()
    return pool, before


def only_best_matters(params: SamplingParams, n: int) -> bool:
    """Whether a temperature of 0 leaves the best logit, whatever else cuts before it."""
    on = [name for name in params.samplers if is_on(name, params, n)]
    if "temperature" not in on or params.mirostat or "adaptive_p" in on:
        return False
    before = on[: on.index("temperature")]
    lead = [name for name in before if name in ("penalties", "dry")]
    if before[: len(lead)] != lead or "typ_p" in before or "xtc" in before:
        return False
    return params.temperature == 0 and not params.dynatemp_range > 0


def adapt(pool: Pool, params: SamplingParams, state: State) -> dict[int, float]:
    total = pool.weigh()
    wanted = min(max(2 * params.adaptive_target - state.adaptive_sum / state.adaptive_weight, 0.0), 1.0)
    p = pool.weight.astype(np.float64) / float(total)
    distance = np.abs(p - wanted) / 0.3
    pool.x = (5.0 - 10.0 * distance * distance / (1.0 + distance)).astype(F32)
    pool.inverse = 1.0
    return {int(token): float(each) for token, each in zip(pool.tokens, p, strict=True)}


def draw_from(pool: Pool, random: int) -> int:
    sums = np.cumsum(pool.weight)
    target = (random * int(sums[-1]) >> 64) + 1
    return int(pool.tokens[np.searchsorted(sums, np.uint64(target), side="left")])


def sample(
    logits: FloatRow,
    params: SamplingParams,
    seed: int,
    draw: int,
    history: Iterable[int] = (),
    allowed: npt.NDArray[np.bool_] | None = None,
    breakers: Breakers = (),
    state: State | None = None,
) -> int | None:
    """The token, or None when every one that is allowed is at -inf. A state becomes that of accepting the token."""
    first, second = random_bits(seed, draw)
    found = candidates(logits, params, second, list(history), allowed, breakers, state)
    if found is None:
        return None
    pool, before = found
    token = draw_from(pool, first)
    if state is not None and params.mirostat:
        weight = int(pool.weight[pool.tokens == token][0])
        surprise = (log(float(int(pool.weight.sum()))) - log(float(weight))) / float.fromhex("0x1.62e42fefa39efp-1")
        state.mu -= params.mirostat_eta * (surprise - params.mirostat_tau)
    if state is not None and before:
        state.adaptive_sum = before[token] + params.adaptive_decay * state.adaptive_sum
        state.adaptive_weight = 1.0 + params.adaptive_decay * state.adaptive_weight
    return token
