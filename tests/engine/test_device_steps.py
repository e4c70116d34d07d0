"""What steps send to a worker and get back; where it finds the best logits, answers are those of whole rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.runner.execute import best_logits
from ollama_engine.sample.constraints.formats import Regex
from tests.models.variants import prompt
from tests.support.tiny import write_tiny_llama
from tests.support.workers import RunningWorker, running_worker

N_VOCAB = 17_000
OPTIONS: dict[str, Any] = {"num_ctx": 256, "threads": 1, "parallel": 4, "kv_cache_type": "f32"}

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "default": {},
    "penalties": {"repeat_penalty": 1.5, "presence_penalty": 0.3, "logit_bias": {3: -1.0}},
    "typical": {"typical_p": 0.8, "xtc_probability": 0.5, "min_keep": 2, "adaptive_target": 0.2},
    "beyond the levels": {"top_k": 300},
    "all tokens": {"top_k": 0, "top_p": 0.95},
    "mirostat": {"mirostat": 2},
    "bias upwards": {"temperature": 0, "logit_bias": {3: 1.0}},
    "logprobs": {"temperature": 0, "logprobs": 2},
    "of the prompt": {"prompt_logprobs": 1},
}
REDUCED = ("greedy", "default", "penalties", "typical", "of the prompt")
"""Once it is read, a prompt whose logits were asked for goes on as others do."""


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningWorker]:
    with running_worker(tmp_path_factory.mktemp("worker")) as running:
        yield running


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Logits of tokens 2 i and 2 i + 1 are equal."""
    path = tmp_path_factory.mktemp("model") / "large.gguf"
    output = np.random.default_rng(5).standard_normal((N_VOCAB // 2, 32)).astype(np.float32)
    tensors = {"output.weight": np.repeat(output, 2, axis=0)}
    write_tiny_llama(path, n_vocab=N_VOCAB, n_embd=32, n_ctx=256, tensors=tensors)
    return str(path)


def answers(path: str, worker: RunningWorker) -> tuple[dict[str, Any], dict[str, tuple[int, int]]]:
    """Answers by kind of request, and how many rows were reduced and fetched whole."""
    found, counted = {}, {}
    with Engine(path, devices=[worker.address], **OPTIONS) as engine:
        reader = engine._loaded.executor.best_logits
        for name, fields in REQUESTS.items():
            before = (reader.counts.reduced, reader.counts.whole) if reader else (0, 0)
            params = SamplingParams(seed=7, max_tokens=12, **fields)
            alone = engine.generate(prompt(9), params, cache=False)
            several = engine.generate([prompt(n) for n in (5, 12, 7)], params, cache=False)
            found[name] = [(a.tokens, a.logprobs, a.prompt_logprobs) for a in (alone, *several)]
            after = (reader.counts.reduced, reader.counts.whole) if reader else (0, 0)
            counted[name] = (after[0] - before[0], after[1] - before[1])
    return found, counted


def test_answers_are_those_of_whole_rows(model: str, worker: RunningWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    found, counted = answers(model, worker)
    monkeypatch.setattr(best_logits, "LEAST_VOCABULARY", N_VOCAB + 1)
    expected, none = answers(model, worker)
    assert set(none.values()) == {(0, 0)}
    for name in REQUESTS:
        assert found[name] == expected[name], name
        reduced, _whole = counted[name]
        assert (reduced > 0) == (name in REDUCED), name
    assert counted["default"][1] == counted["greedy"][1] == 0
    assert counted["of the prompt"][1] > 0


def test_constrained_answers_need_whole_rows(model: str, worker: RunningWorker) -> None:
    with Engine(model, devices=[worker.address], **OPTIONS) as engine:
        reader = engine._loaded.executor.best_logits
        assert reader is not None
        answer = engine.generate(prompt(9), SamplingParams(seed=3, max_tokens=8), format=Regex("[a-e ]+"))
        assert set(answer.text) <= set("abcde ")
        assert reader.counts.reduced == 0


# -- what a step sends -------------------------------------------------------------------------------------------------

SHORT, LONG = 20, 60
HEADER = 512
"""Bytes of one message beside what it carries, at most: ggml describes a tensor in about 300."""


def costs_of_a_token(engine: Engine, params: SamplingParams) -> dict[str, float]:
    """What a token of an answer costs when its graph is there: the difference of two answers, by their lengths."""
    worker = engine._loaded.backend.workers[0]
    never = dict.fromkeys(engine._loaded.tokenizer.eog_ids, -np.inf)
    counts = []
    for length in (SHORT, SHORT, LONG):  # the first takes memory
        before = worker.counts()
        answer = engine.generate("Once upon a time", replace(params, max_tokens=length, logit_bias=never), cache=False)
        assert len(answer.tokens) == length
        counts.append({name: number - before[name] for name, number in worker.counts().items()})
    return {name: (counts[2][name] - counts[1][name]) / (LONG - SHORT) for name in counts[0]}


@pytest.mark.parametrize("kind", ["greedy", "default", "logprobs"])
def test_a_token_of_a_large_vocabulary(kind: str, model: str, worker: RunningWorker) -> None:
    """Its inputs, its embedding and the graph's number go up; some of the best logits come back, which are waited for.

    SmolLM2's row of logits has 196,608 bytes.
    """
    with Engine(model, devices=[worker.address], **OPTIONS) as engine:
        cost = costs_of_a_token(engine, SamplingParams(seed=1, **REQUESTS[kind]))
    received = {"greedy": 4 * 33, "default": 4 * 257, "logprobs": 4 * N_VOCAB}[kind]
    assert cost["messages"] <= 4
    assert cost["round_trips"] == cost["graphs"] == 1
    assert cost["bytes_received"] <= received + 8
    assert cost["bytes_sent"] <= 4 * HEADER + 4 * 32 + 2 * 256


def test_a_token_of_the_demo(worker: RunningWorker) -> None:
    """Its vocabulary is small: a row comes back whole. The worker embeds its tokens, with the weights of the output."""
    with Engine(demo.path(), devices=[worker.address], **OPTIONS) as engine:
        cost = costs_of_a_token(engine, SamplingParams(temperature=0))
        n_vocab = engine.info.n_vocab
    assert cost["messages"] <= 3
    assert cost["round_trips"] == cost["graphs"] == 1
    assert cost["bytes_received"] <= 4 * n_vocab + 8
    assert cost["bytes_sent"] <= 3 * HEADER + 2 * 256
