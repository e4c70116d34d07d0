"""`best_of`: the candidates are those that `n` gives, and the most probable ones are returned."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ollama_engine import Completion, Engine, SamplingParams, demo

PROMPT = "Once upon a time there was a little"
PARAMS = SamplingParams(temperature=1.5, seed=11, max_tokens=12)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=96, parallel=3, threads=1) as engine:
        yield engine


def texts(completions: list[Completion]) -> list[str]:
    return [completion.text for completion in completions]


def test_the_most_probable_of_the_candidates_are_returned(engine: Engine) -> None:
    asked = SamplingParams(temperature=1.5, seed=11, max_tokens=12, logprobs=0)
    candidates = engine.generate(PROMPT, asked, n=6)
    sums = [sum(entry.logprob for entry in candidate.logprobs or ()) for candidate in candidates]
    assert [candidate.cumulative_logprob for candidate in candidates] == pytest.approx(sums)
    ranked = sorted(candidates, key=lambda candidate: -(candidate.cumulative_logprob or 0))
    found = engine.generate(PROMPT, PARAMS, n=2, best_of=6)
    assert texts(found) == texts(ranked[:2])
    assert [each.logprobs for each in found] == [None, None]
    spent = sum(each.usage.completion_tokens + each.usage.discarded_tokens for each in found)
    assert spent == sum(candidate.usage.completion_tokens for candidate in candidates)
    scored = engine.score(engine.tokenize(PROMPT), [list(each.tokens) for each in found])
    assert [each.logprob for each in scored] == pytest.approx([each.cumulative_logprob for each in found], abs=0.05)


def test_one_best_answer_is_no_list(engine: Engine) -> None:
    (best,) = engine.generate(PROMPT, PARAMS, n=1, best_of=4)
    alone = engine.generate(PROMPT, PARAMS, best_of=4)
    assert isinstance(alone, Completion)
    assert alone.text == best.text


def test_for_several_prompts_and_asyncio(engine: Engine) -> None:
    prompts = [PROMPT, "Tom and Sue went"]

    async def ask() -> list[Completion]:
        return await engine.agenerate(prompts, PARAMS, n=2, best_of=3)

    found = engine.generate(prompts, PARAMS, n=2, best_of=3)
    assert len(found) == 4
    assert texts(asyncio.run(ask())) == texts(found)
    assert texts(found[:2]) == texts(engine.generate(PROMPT, PARAMS, n=2, best_of=3))
