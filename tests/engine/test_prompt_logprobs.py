"""Log-probabilities of prompt tokens: those of the log-softmax of `Engine.logits`, whatever else the engine does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import pytest

from ollama_engine import Completion, Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError

LONG = "Once upon a time there was a little girl called Lily. She had a red ball. " * 9
SHORT = "Tom and Sue"


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=256, parallel=3, batch_size=48, threads=1, kv_cache_type="f32") as engine:
        yield engine


def asking(top: int = 0, **fields: object) -> SamplingParams:
    return SamplingParams(**{"temperature": 0, "max_tokens": 3, "prompt_logprobs": top, **fields})  # type: ignore[arg-type]


def log_softmax(logits: npt.NDArray[np.float32]) -> npt.NDArray[np.float64]:
    rows = logits.astype(np.float64)
    return rows - np.logaddexp.reduce(rows, axis=1, keepdims=True)


def check(engine: Engine, prompt: str, found: Completion, top: int = 0) -> None:
    ids = engine.tokenize(prompt)
    expected = log_softmax(engine.logits(prompt))
    assert found.prompt_logprobs is not None
    assert found.prompt_logprobs[0] is None
    assert len(found.prompt_logprobs) == len(ids)
    for entry, token, row in zip(found.prompt_logprobs[1:], ids[1:], expected, strict=False):
        assert entry is not None
        assert entry.token == token
        assert abs(entry.logprob - row[token]) < 1e-4
        best = np.lexsort((np.arange(len(row)), -row))[:top]
        assert np.allclose([logprob for _, logprob in entry.top], row[best], atol=1e-4)
        assert len({best for best, _ in entry.top}) == top


@pytest.mark.parametrize("prompt", [LONG, SHORT, "a"])
@pytest.mark.parametrize("top", [0, 4])
def test_they_are_the_log_softmax_of_the_logits(engine: Engine, prompt: str, top: int) -> None:
    check(engine, prompt, engine.generate(prompt, asking(top)), top)


def test_what_the_cache_has_of_the_prompt_is_computed_again(engine: Engine) -> None:
    """Its rows of logits are not kept."""
    engine.generate(LONG, SamplingParams(max_tokens=1))
    assert engine.generate(LONG, SamplingParams(max_tokens=1)).usage.cached_tokens > 0
    found = engine.generate(LONG, asking())
    assert found.usage.cached_tokens == 0
    check(engine, LONG, found)
    assert engine.generate(LONG, SamplingParams(max_tokens=1)).usage.cached_tokens > 0, "others share what it computed"


def test_the_answer_is_the_same(engine: Engine) -> None:
    plain, asked = (engine.generate(LONG, asking(prompt_logprobs=given, logprobs=1)) for given in (None, 2))
    assert plain.prompt_logprobs is None
    assert asked.tokens == plain.tokens
    assert asked.logprobs is not None
    assert [entry.token for entry in asked.logprobs] == list(asked.tokens)


def test_no_answer_is_needed(engine: Engine) -> None:
    found = engine.generate(SHORT, asking(max_tokens=0))
    assert (found.tokens, found.finish_reason) == ((), "length")
    check(engine, SHORT, found)


def test_they_come_with_the_first_chunk(engine: Engine) -> None:
    first, *others = engine.stream(SHORT, asking())
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == len(engine.tokenize(SHORT))
    assert others
    assert all(chunk.prompt_logprobs is None for chunk in others)


def test_side_by_side(engine: Engine) -> None:
    prompts = [LONG, SHORT, LONG[30:], "Sue", LONG[:200]]
    for prompt, found in zip(prompts, engine.generate(prompts, asking(2)), strict=True):
        check(engine, prompt, found, 2)


def test_several_answers_to_one_prompt_have_them_and_share_the_prompt(engine: Engine) -> None:
    async def ask() -> list[Completion]:
        return await engine.agenerate([LONG, SHORT], asking(1), n=3)

    for found in (engine.generate([LONG, SHORT], asking(1), n=3), asyncio.run(ask())):
        for prompt, answers in ((LONG, found[:3]), (SHORT, found[3:])):
            for answer in answers:
                check(engine, prompt, answer, 1)
        assert [answer.usage.cached_tokens > 0 for answer in found[:3]] == [False, True, True]


def test_a_fork_has_none_unless_it_asks(engine: Engine) -> None:
    request = engine.submit(LONG, asking(max_tokens=8))
    first = next(request)
    fork = engine.fork(request)
    asked = engine.fork(request, asking()).result()
    assert fork.result().prompt_logprobs is None
    assert asked.prompt_logprobs is not None
    assert len(asked.prompt_logprobs) == len(engine.tokenize(LONG)) + len(first.tokens)


def test_a_session_has_them_of_all_it_holds(engine: Engine) -> None:
    with engine.session() as session:
        session.append(SHORT)
        answer = session.generate(SamplingParams(temperature=0, max_tokens=4))
        session.append(" went")
        found = session.generate(asking())
        assert found.prompt_logprobs is not None
        ids = [entry.token for entry in found.prompt_logprobs if entry is not None]
        assert ids[: len(engine.tokenize(SHORT)) - 1] == engine.tokenize(SHORT)[1:]
        assert set(answer.tokens) <= set(ids)


def test_what_a_truncated_prompt_has_left(engine: Engine) -> None:
    found = engine.generate(LONG * 2, asking(), on_overflow="truncate")
    assert found.prompt_logprobs is not None
    assert found.usage.dropped_prompt_tokens > 0
    assert len(found.prompt_logprobs) == found.usage.prompt_tokens - found.usage.dropped_prompt_tokens


def test_with_a_format_and_logits_processors(engine: Engine) -> None:
    """Their rows of the prompt come before the one that is drawn from, which is steered."""
    shown: list[int] = []
    form = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    found = engine.generate(
        LONG, asking(2, max_tokens=40), format=form,
        logits_processors=[lambda ids, logits: shown.append(len(ids))],
    )  # fmt: skip
    check(engine, LONG, found, 2)
    assert shown
    assert min(shown) >= len(engine.tokenize(LONG))
    assert found.finish_reason == "length" or isinstance(found.parsed["n"], int)


@pytest.mark.parametrize("given", [-1, 1.5, True, "2"])
def test_what_is_refused(given: object) -> None:
    with pytest.raises(ConfigError, match="prompt_logprobs"):
        SamplingParams(prompt_logprobs=given)  # type: ignore[arg-type]
