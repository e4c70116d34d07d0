"""Each sampler, and chains of them, beside llama.cpp's on the same logits; make_goldens.py wrote down its answers."""

from __future__ import annotations

import json
import math
import zlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import demo
from ollama_engine.sample import BreakerFinder, Sampler, SequenceBreakers
from ollama_engine.tokenizer import Tokenizer, from_gguf
from tests.sample import golden_cases as cases
from tests.sample.rows import FloatRow
from tests.support.suite import slow_except

GOLDENS: dict[str, Any] = json.loads(Path(__file__).with_name("goldens.json").read_text(encoding="utf-8"))
CLOSE = 2e-5
"""Error of a probability, relative to it: llama.cpp adds up in 32 bits."""
LOOSE = {"huge": 2e-3, "peaked": 5e-4}
"""The same where that shows, in entropies and sums over many tokens; `test_a_huge_vocabulary_in_64_bits` says who is
nearer to the truth. As much of the tokens may differ."""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return from_gguf(demo.path())


def finder(tokenizer: Tokenizer) -> BreakerFinder:
    return BreakerFinder(tokenizer.n_vocab, tokenizer)


def test_the_rows_are_those_that_llama_cpp_saw() -> None:
    assert {name: zlib.crc32(logits.tobytes()) for name, logits in cases.ROWS.items()} == GOLDENS["rows"]


def assert_same(found: dict[int, float], golden: dict[str, Any], logits: FloatRow, close: float = CLOSE) -> None:
    """The same tokens with the same probabilities; which of several with one logit stay is not defined there."""
    assert abs(len(found) - golden["count"]) <= (0 if close == CLOSE else math.ceil(close * golden["count"]))
    if len(found) == golden["count"]:
        gone = sorted(set(np.flatnonzero(logits > -np.inf).tolist()) - set(found))
        for name, tokens in (("kept", list(found)), ("dropped", gone)):
            if name in golden:
                assert np.array_equal(np.sort(logits[tokens]), np.sort(logits[golden[name]]))
    by_logit = {float(logits[token]): p for token, p in found.items()}
    for token, p in golden["p"]:
        value = found.get(token, by_logit.get(float(logits[token])))
        if close == CLOSE or value is not None:
            assert value is not None
            assert math.isclose(value, p, rel_tol=close, abs_tol=2e-12), token


@pytest.mark.parametrize("row", slow_except(cases.ROWS, *(cases.ROWS.keys() - {"huge", "peaked"})))
@pytest.mark.parametrize("chain", cases.CHAINS)
def test_candidates_after_each_sampler_of_a_chain(chain: str, row: str) -> None:
    logits, params = cases.ROWS[row], cases.CHAINS[chain]
    loose = row in LOOSE and {"typ_p", "dynatemp", "the default order"} & {chain.split(",", maxsplit=1)[0]}
    goldens, names = GOLDENS["chains"][f"{chain} | {row}"], cases.names(params)
    assert len(goldens) == len(names)
    for n, golden in enumerate(goldens, 1):
        sampler = Sampler(replace(params, samplers=names[:n]), len(logits))
        sampler.accept_many(cases.history_of(len(logits)))
        assert_same(sampler.candidates(logits), golden, logits, LOOSE[row] if loose else CLOSE)


def test_a_huge_vocabulary_in_64_bits() -> None:
    """Entropies summed up in 64 bits give our numbers, and not quite llama.cpp's."""
    logits, params = cases.ROWS["huge"], cases.CHAINS["dynatemp"]
    x = logits.astype(np.float64)
    p = np.exp(x - x.max()) / np.exp(x - x.max()).sum()
    entropy = float(-(p * np.log(p)).sum())
    temperature = 0.3 + 1.2 * (entropy / math.log(len(x))) ** params.dynatemp_exponent
    found = Sampler(params, len(logits)).candidates(logits)
    golden = dict(GOLDENS["chains"]["dynatemp | huge"][0]["p"])
    first, *_, second = (token for token, probability in golden.items() if probability > 1e-9)
    truth = math.exp((x[first] - x[second]) / temperature)
    ours, theirs = (abs(each[first] / each[second] / truth - 1) for each in (found, golden))
    assert ours < 1e-5
    assert theirs > 1e-4

    order = np.argsort(np.abs(-np.log(p) - entropy))
    kept = order[: int(np.searchsorted(np.cumsum(p[order]), 0.87, side="right")) + 1]
    typical = Sampler(cases.CHAINS["typ_p, most"], len(logits)).candidates(logits)
    assert len(set(kept.tolist()) ^ set(typical)) <= 2


@pytest.mark.parametrize("name", cases.DRY)
def test_dry(name: str, tokenizer: Tokenizer) -> None:
    """With level logits, the distance from the best is the penalty."""
    params = replace(cases.DRY[name], samplers="dry")
    breakers = finder(tokenizer).find(tuple(params.dry_sequence_breakers))
    n_penalized = 0
    for history, golden in zip(GOLDENS["histories"], GOLDENS["dry"][name], strict=True):
        sampler = Sampler(params, tokenizer.n_vocab, breakers=breakers)
        sampler.accept_many(history)
        found = sampler.candidates(np.zeros(tokenizer.n_vocab, np.float32))
        best = max(found.values())
        penalties = {token: -math.log(p / best) if p else math.inf for token, p in found.items() if p < best}
        assert sorted(penalties) == [int(token) for token, _ in golden]
        for token, penalty in golden:
            assert (
                penalties[int(token)] >= 20
                if penalty > 20
                else math.isclose(penalties[int(token)], penalty, rel_tol=1e-3 if penalty > 15 else 1e-5)
            )
        n_penalized += len(golden)
    assert n_penalized > 10


@pytest.mark.parametrize("name", cases.MIROSTAT)
def test_mirostat(name: str) -> None:
    """Where the token is llama.cpp's, mu is: draws are repeated until it is."""
    params = replace(cases.MIROSTAT[name], samplers="temperature")
    sampler = Sampler(params, 400)
    for logits, golden in zip(cases.step_rows(), GOLDENS["mirostat"][name], strict=True):
        assert len(sampler.candidates(logits)) == golden["count"]
        while sampler.sample(logits) != golden["token"]:
            pass
        sampler.accept(golden["token"])
        assert math.isclose(sampler.mirostat_mu, golden["mu"], rel_tol=1e-5)


@pytest.mark.parametrize("name", cases.ADAPTIVE)
def test_adaptive_p(name: str) -> None:
    params = replace(cases.ADAPTIVE[name], samplers="min_p;adaptive_p")
    sampler = Sampler(params, 400)
    for logits, golden in zip(cases.step_rows(), GOLDENS["adaptive"][name], strict=True):
        assert_same(sampler.candidates(logits), golden, logits)
        while sampler.sample(logits) != golden["token"]:
            pass
        sampler.accept(golden["token"])
        assert math.isclose(sampler.adaptive_mean, golden["mean"], rel_tol=1e-5)


def test_breakers_of_the_demo(tokenizer: Tokenizer) -> None:
    """Single tokens are those whose text has a breaker in it."""
    found = finder(tokenizer).find(("\n", "day,"))
    assert isinstance(found, SequenceBreakers)
    single = [token for token in range(tokenizer.n_vocab) if found.single[token // 32] >> token % 32 & 1]
    texts = [tokenizer.token_bytes(token, skip_special=False) for token in range(tokenizer.n_vocab)]
    assert single == [token for token, text in enumerate(texts) if b"\n" in text or b"day," in text]
