"""Prompts that come together and begin alike: what they share is computed once, by attention and by states."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.runner.schedule.shared_prompts import WORTH
from tests.models import families
from tests.models.variants import prompt
from tests.support.suite import slow_except
from tests.support.waiting import eventually

GREEDY = SamplingParams(temperature=0, max_tokens=6, logit_bias=families.BANNED)
SHARED, BATCH = prompt(150), 32


@pytest.fixture(scope="module", params=slow_except(("qwen3", "gemma3", "lfm2", "nemotron_h"), "qwen3", "lfm2"))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(families.converted(families.case(request.param), tmp_path_factory.mktemp(request.param)))


@pytest.fixture
def engine(path: str) -> Iterator[Engine]:
    with Engine(path, num_ctx=256, parallel=5, threads=1, gpu_layers=0, kv_cache_type="f32", batch_size=BATCH,
                verify=True) as engine:  # fmt: skip
        yield engine


@contextmanager
def busy(engine: Engine) -> Iterator[None]:
    """An answer holds the engine's thread meanwhile, so that requests come together."""
    entered, go = threading.Event(), threading.Event()

    def wait(tokens: Any, logits: Any) -> None:
        entered.set()
        assert go.wait(60)

    request = engine.submit([1, 2, 3], SamplingParams(temperature=0, max_tokens=1), logits_processors=[wait])
    assert entered.wait(60)
    try:
        yield
    finally:
        go.set()
    request.result()


def questions(n: int, shared: list[int] = SHARED) -> list[list[int]]:
    return [[*shared, *prompt(9 + seed, seed=seed + 1)] for seed in range(n)]


def test_questions_that_come_together_compute_their_prefix_once(engine: Engine, path: str) -> None:
    with busy(engine):
        requests = [engine.submit(question, GREEDY) for question in questions(5)]
    answers = [request.result() for request in requests]
    assert [answer.usage.cached_tokens for answer in answers] == [0, *[len(SHARED)] * 4]
    with Engine(path, num_ctx=256, parallel=1, threads=1, gpu_layers=0, kv_cache_type="f32") as alone:
        expected = [alone.generate(question, GREEDY, cache=False).tokens for question in questions(5)]
    assert [answer.tokens for answer in answers] == expected


@pytest.mark.parametrize("options", [{"cache": False}, {"cache_salt": "other"}], ids=["no-cache", "salt"])
def test_who_cannot_share_does_not_wait(engine: Engine, options: dict[str, Any]) -> None:
    with busy(engine):
        first, second = questions(2)
        requests = [engine.submit(first, GREEDY), engine.submit(second, GREEDY, **options)]
    assert [request.result().usage.cached_tokens for request in requests] == [0, 0]


def test_the_most_urgent_computes_it(engine: Engine) -> None:
    with busy(engine):
        first, second = questions(2)
        requests = [engine.submit(first, GREEDY), engine.submit(second, GREEDY, priority=1)]
    assert [request.result().usage.cached_tokens for request in requests] == [len(SHARED), 0]


def test_a_short_prefix_is_computed_by_each(engine: Engine) -> None:
    with busy(engine):
        requests = [engine.submit(question, GREEDY) for question in questions(3, SHARED[: WORTH - 1])]
    assert [request.result().usage.cached_tokens for request in requests] == [0, 0, 0]


def test_a_leader_that_is_cancelled_leaves_the_others_to_go_on(engine: Engine) -> None:
    with busy(engine):
        requests = [engine.submit(question, GREEDY) for question in questions(3)]
        requests[0].cancel()
    answers = [request.result() for request in requests[1:]]
    assert all(len(answer.tokens) == 6 for answer in answers)
    eventually(lambda: not engine.slots())


def test_what_is_cached_already_is_not_waited_for(engine: Engine) -> None:
    """A prompt whose log-probabilities are wanted is computed from its beginning."""
    first = questions(1)[0]
    engine.generate(first, GREEDY)
    order: list[str] = []
    scored = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
    with busy(engine):
        leader = engine.submit(first, scored, logits_processors=[lambda ids, logits: order.append("leader")])
        other = engine.submit(
            [*first, *prompt(9, seed=9)], GREEDY, logits_processors=[lambda ids, logits: order.append("other")]
        )
    assert other.result().usage.cached_tokens > len(SHARED)
    leader.result()
    assert order[0] == "other"
