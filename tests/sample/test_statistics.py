"""The draws follow the distribution that was asked for: chi-square over many draws for each way to ask.

The critical values are the upper 1e-6 quantiles of the chi-square distribution by Wilson and Hilferty's approximation
(z = 4.7534), so that a sound sampler fails one case in a million; the seeds are fixed, so it fails always or never.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from ollama_engine.sample import Sampler, SamplingParams, sample_rows
from tests.sample import rows
from tests.sample.rows import FloatRow, row
from tests.support.suite import scaled

DRAWS = scaled(1_000_000, quick=100_000)
Z = 4.7534


def critical_value(degrees: int) -> float:
    return degrees * (1 - 2 / (9 * degrees) + Z * math.sqrt(2 / (9 * degrees))) ** 3


def softmax(x: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    e = np.exp(x - x.max())
    return np.asarray(e / e.sum())


def chi_square(counts: npt.NDArray[np.int64], p: npt.NDArray[np.float64]) -> tuple[float, int]:
    """The statistic and its degrees of freedom; tokens expected fewer than 10 times form one class together."""
    expected = p * counts.sum()
    rare = expected < 10
    seen = np.append(counts[~rare], counts[rare].sum())
    wanted = np.append(expected[~rare], expected[rare].sum())
    seen, wanted = seen[wanted > 0], wanted[wanted > 0]
    return float(((seen - wanted) ** 2 / wanted).sum()), len(wanted) - 1


def counts_of(sampler: Sampler, logits: FloatRow, draws: int) -> npt.NDArray[np.int64]:
    tokens = np.fromiter((sampler.sample(logits) for _ in range(draws)), np.int64, draws)
    return np.bincount(tokens, minlength=len(logits))


def counts_of_rows(samplers: list[Sampler], logits: FloatRow, draws: int) -> npt.NDArray[np.int64]:
    counts = np.zeros(len(logits), np.int64)
    batch = np.ascontiguousarray(np.broadcast_to(logits, (len(samplers), len(logits))))
    for _ in range(draws // len(samplers)):
        counts += np.bincount(np.array(sample_rows(samplers, batch)), minlength=len(logits))
    return counts


def expected_top_p(p: npt.NDArray[np.float64], top_p: float) -> npt.NDArray[np.float64]:
    order = np.argsort(-p, kind="stable")
    size = int(np.searchsorted(np.cumsum(p[order]), top_p)) + 1
    out = np.zeros_like(p)
    out[order[:size]] = p[order[:size]]
    return np.asarray(out / out.sum())


LOGITS = rows.gaussian(60, 1.5, seed=11)
HOT = softmax(LOGITS.astype(np.float64) / 1.7)
TWELFTH = np.sort(HOT)[-12]
WARMED_FIRST = ("temperature", "top_k", "top_p", "min_p")
CASES = {
    "plain": (SamplingParams(temperature=1, top_k=0, top_p=1), softmax(LOGITS.astype(np.float64))),
    "temperature": (SamplingParams(temperature=1.7, top_k=0, top_p=1), HOT),
    "top-k": (SamplingParams(temperature=1.7, top_k=12, top_p=1), np.where(TWELFTH <= HOT, HOT, 0)),
    "top-p": (SamplingParams(temperature=1.7, top_k=0, top_p=0.7, samplers=WARMED_FIRST), expected_top_p(HOT, 0.7)),
    "min-p": (
        SamplingParams(temperature=1.7, top_k=0, top_p=1, min_p=0.2, samplers=WARMED_FIRST),
        np.where(HOT.max() * 0.2 <= HOT, HOT, 0),
    ),
}


def mixture(p: npt.NDArray[np.float64], share: float, threshold: float) -> npt.NDArray[np.float64]:
    """XTC: in this share of draws, no token above the threshold but the least of them."""
    top = np.argsort(-p)[: int(np.count_nonzero(p >= threshold)) - 1]
    rest = p.copy()
    rest[top] = 0
    return np.asarray((1 - share) * p + share * rest / rest.sum())


XTC_BASE = SamplingParams(temperature=1.7, top_k=0, top_p=1, samplers=("temperature", "xtc"))
CASES |= {
    f"XTC, {share}": (replace(XTC_BASE, xtc_probability=share, xtc_threshold=0.03), mixture(HOT, share, 0.03))
    for share in (0.25, 1.0)
}


@pytest.mark.parametrize("name", CASES)
def test_draws_of_one_stream(name: str) -> None:
    params, p = CASES[name]
    sampler = Sampler(replace(params, seed=2024), len(LOGITS))
    counts = counts_of(sampler, LOGITS, DRAWS)
    statistic, degrees = chi_square(counts, p / p.sum())
    assert counts[p == 0].sum() == 0
    assert statistic < critical_value(degrees)


@pytest.mark.timeout(120)  # 200,000 samplers are made
def test_first_draws_of_many_seeds() -> None:
    """Streams of neighbouring seeds are independent too."""
    params, p = CASES["plain"]
    counts = np.zeros(len(LOGITS), np.int64)
    for block in range(scaled(20, quick=2)):
        seeds = range(block * 10_000, (block + 1) * 10_000)
        samplers = [Sampler(replace(params, seed=seed), len(LOGITS)) for seed in seeds]
        counts += counts_of_rows(samplers, LOGITS, len(samplers))
    statistic, degrees = chi_square(counts, p)
    assert statistic < critical_value(degrees)


def test_draws_through_the_histogram() -> None:
    """A vocabulary beyond the list of candidates: 6,000 tokens in 12 classes of probability."""
    logits = row(np.log(1 + np.arange(6000) % 12))
    sampler = Sampler(SamplingParams(temperature=1, top_k=0, top_p=1, seed=77), 6000)
    counts = counts_of(sampler, logits, scaled(200_000, quick=50_000))
    by_class = counts.reshape(-1, 12).sum(axis=0)
    statistic, degrees = chi_square(by_class, np.arange(1, 13) / 78)
    assert statistic < critical_value(degrees)
    within = counts.reshape(-1, 12)[:, 11]
    statistic, degrees = chi_square(within, np.full(500, 1 / 500))
    assert statistic < critical_value(degrees)


def test_the_statistic_notices_a_wrong_distribution() -> None:
    params, p = CASES["plain"]
    sampler = Sampler(replace(params, seed=2024, temperature=scaled(1.02, quick=1.07)), len(LOGITS))
    statistic, degrees = chi_square(counts_of(sampler, LOGITS, DRAWS), p)
    assert statistic > critical_value(degrees)
