"""Log-probabilities: the log-softmax of the logits as they came."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from ollama_engine.errors import ConfigError
from ollama_engine.sample import Sampler, SamplingParams, TokenLogprobs
from tests.sample import rows
from tests.sample.rows import ADVERSARIAL, FloatRow, row


def log_softmax(x: FloatRow) -> Any:
    wide = x.astype(np.float64)
    return wide - wide.max() - math.log(np.exp(wide - wide.max()).sum())


def best_first(x: FloatRow, top: int) -> list[int]:
    order = np.lexsort((np.arange(len(x)), -x.astype(np.float64)))
    return [int(i) for i in order if x[i] > -np.inf][:top]


@pytest.mark.parametrize("top", [0, 1, 5, 20, 5000])
@pytest.mark.parametrize("name", ADVERSARIAL)
def test_against_numpy(name: str, top: int) -> None:
    logits = ADVERSARIAL[name]
    token = len(logits) // 2
    expected = log_softmax(logits)
    result = Sampler(SamplingParams(), len(logits)).logprobs(logits, token, top)
    assert isinstance(result, TokenLogprobs)
    assert result.token == token
    assert result.logprob == pytest.approx(expected[token], abs=1e-6, rel=1e-7)
    assert [i for i, _ in result.top] == best_first(logits, top)
    assert [p for _, p in result.top] == pytest.approx([expected[i] for i, _ in result.top], abs=1e-6, rel=1e-7)


@pytest.mark.parametrize("scale", [0.05, 1.0, 8.0])
def test_large_vocabulary_sums_to_one(scale: float) -> None:
    logits = rows.gaussian(262_144, scale)
    result = Sampler(SamplingParams(), 262_144).logprobs(logits, 3, 262_144)
    assert result.logprob == pytest.approx(log_softmax(logits)[3], abs=1e-6)
    assert math.fsum(math.exp(p) for _, p in result.top) == pytest.approx(1, abs=1e-6)


def test_parameters_and_history_do_not_enter() -> None:
    logits = rows.gaussian(1000, 2.0)
    params = SamplingParams(temperature=0.1, top_k=1, repeat_penalty=2, logit_bias={5: -math.inf})
    sampler = Sampler(params, 1000)
    sampler.accept_many(range(1000))
    assert sampler.logprobs(logits, 5, 10) == Sampler(SamplingParams(), 1000).logprobs(logits, 5, 10)
    assert sampler.draws == 0


def test_an_impossible_token() -> None:
    result = Sampler(SamplingParams(), 3).logprobs(row([0.0, -np.inf, 0.0]), 1, 3)
    assert result.logprob == -math.inf
    assert [i for i, _ in result.top] == [0, 2]


def test_the_sampler_still_works_after_a_wide_request() -> None:
    """`top` beyond top_k enlarges the working memory that sampling shares."""
    logits = rows.gaussian(3000, 2.0)
    wide, narrow = (Sampler(SamplingParams(seed=1), 3000) for _ in range(2))
    wide.logprobs(logits, 0, 3000)
    assert [wide.sample(logits) for _ in range(20)] == [narrow.sample(logits) for _ in range(20)]


def test_negative_top_raises() -> None:
    with pytest.raises(ConfigError, match="got -1"):
        Sampler(SamplingParams(), 3).logprobs(row([0, 1, 2]), 0, -1)
