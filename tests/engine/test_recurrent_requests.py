"""Models with recurrent states, in requests of every kind: formats, log-probabilities, scores, embeddings, reports."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ollama_engine import Engine, SamplingParams
from ollama_engine.sample.constraints.formats import Regex
from tests.models import families
from tests.models.variants import prompt
from tests.support.near import assert_same_rows
from tests.support.suite import slow_except

FORM = "(?:All of this is fixed but [a-c]{2}, and this too\\. ){2}"
OPTIONS: dict[str, Any] = {"num_ctx": 256, "threads": 1, "gpu_layers": 0, "kv_cache_type": "f32", "verify": True}


@pytest.fixture(scope="module", params=slow_except(("lfm2", "qwen35", "mamba2", "nemotron_h_moe"), "lfm2", "mamba2"))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(families.converted(families.case(request.param), tmp_path_factory.mktemp(request.param)))


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with Engine(path, parallel=3, **OPTIONS) as engine:
        yield engine


def greedy(n: int, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=n, **more)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    normal: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return normal


def test_forms_whose_tokens_are_forced(engine: Engine, path: str) -> None:
    """Forced tokens are computed several at a time, behind a state."""
    prompts = [prompt(n, seed=n) for n in (40, 7, 21)]
    requests = [engine.submit(ids, greedy(150), format=Regex(FORM)) for ids in prompts]
    answers = [request.result() for request in requests]
    assert all(re.fullmatch(FORM, answer.text) for answer in answers)
    with Engine(path, parallel=1, **OPTIONS) as alone:
        expected = [alone.generate(ids, greedy(150), format=Regex(FORM), cache=False).tokens for ids in prompts]
    assert [answer.tokens for answer in answers] == expected
    again = engine.generate([*prompts[0], *answers[0].tokens, *prompt(5)], greedy(150), format=Regex(FORM))
    assert again.usage.cached_tokens > len(prompts[0])


def test_a_checkpoint_of_one_namespace_is_never_used_by_another(engine: Engine) -> None:
    """Nor does one namespace learn where the questions of another part."""
    shared, params = prompt(40), greedy(4, logit_bias=families.BANNED)
    questions = [[*shared, *prompt(15, seed=seed)] for seed in (1, 2, 3)]
    for salt in ("alice", "bob", None):
        answers = [engine.generate(question, params, cache_salt=salt) for question in questions]
        assert [answer.usage.cached_tokens for answer in answers] == [0, 0, 40], salt
    again = [engine.generate(questions[0], params, cache_salt=salt).usage.cached_tokens for salt in ("bob", "eve")]
    assert again == [len(questions[0]) - 1, 0]


def test_logprobs_are_those_of_the_logits(engine: Engine) -> None:
    ids = prompt(30)
    params = greedy(5, logprobs=3, prompt_logprobs=0, logit_bias=families.BANNED)
    first, again = (engine.generate(ids, params) for _ in range(2))
    assert (first.prompt_logprobs, first.logprobs) == (again.prompt_logprobs, again.logprobs)
    rows = log_softmax(engine.logits([*ids, *first.tokens]))
    for at, entry in enumerate((first.prompt_logprobs or ())[1:]):
        assert entry is not None
        assert entry.logprob == pytest.approx(rows[at, ids[at + 1]], abs=1e-4)
    plain = engine.generate(ids, greedy(5, logprobs=0, logit_bias=families.BANNED))
    assert plain.tokens == first.tokens


def test_scores_share_what_continuations_begin_with(engine: Engine) -> None:
    ids, parts = prompt(25), ([5, 6, 7], [5, 6, 9, 11], [8])
    scores = engine.score(ids, list(parts))
    for part, score in zip(parts, scores, strict=True):
        rows = log_softmax(engine.logits([*ids, *part]))[len(ids) - 1 : -1]
        assert score.logprobs == pytest.approx([rows[at, token] for at, token in enumerate(part)], abs=1e-4)
    before = engine.metrics.prompt_tokens
    for again, score in zip(engine.score(ids, list(parts)), scores, strict=True):
        assert_same_rows(again.logprobs, score.logprobs)
    assert engine.metrics.prompt_tokens - before <= sum(map(len, parts)) + len(parts), "the prompt is there"


def test_embeddings_are_alike_alone_and_together(path: str) -> None:
    texts = ["once upon a time", "a much longer text, which takes several batches of sixteen tokens each", "no"]
    with Engine(path, parallel=2, batch_size=16, **OPTIONS) as engine:
        alone = [engine.embed(text) for text in texts]
        for text, vector in zip(engine.embed(texts), alone, strict=True):
            assert np.array_equal(text, vector)
        assert engine.generate(prompt(20), greedy(3)).tokens, "texts leave no state"
        assert np.array_equal(engine.embed(texts[0]), alone[0])
        assert abs(np.dot(alone[0], alone[1])) < 0.99


def test_plans_and_reports_count_states(path: str) -> None:
    for more in ({}, {"state_cache_bytes": 0, "parallel": 4}):
        planned = Engine.plan_memory(path, **OPTIONS | more).devices[-1]
        with Engine(path, **OPTIONS | more) as engine:
            there = engine.memory.devices[-1]
        assert planned.states == there.states > 0
        assert planned.cache == there.cache


def test_the_timeline_shows_what_was_computed(engine: Engine) -> None:
    for _ in range(2):
        engine.generate(prompt(40), greedy(4, logit_bias=families.BANNED))
    computed = [step.prompt_tokens for step in engine.steps(100) if step.prompt_tokens]
    assert computed == [40, 1]
    assert len(json.loads(engine.trace())["traceEvents"]) > 8
