"""`prompt_token_ids`: an answer says which tokens its prompt has, where that is asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError

STORY = "One day, a girl"
SHORT = SamplingParams(temperature=0, max_tokens=3)


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=64, threads=1) as made:
        yield made


def test_of_a_prompt(engine: Engine) -> None:
    assert engine.generate(STORY, SHORT).prompt_token_ids is None
    found = engine.generate(STORY, SHORT, prompt_token_ids=True)
    assert found.prompt_token_ids == tuple(engine.tokenize(STORY))


def test_of_a_chat_with_what_stands_before_it(engine: Engine) -> None:
    messages = [{"role": "user", "content": "Who?"}]
    found = engine.chat(messages, SHORT, context=[5, 6], prompt_token_ids=True)
    assert found.prompt_token_ids == (5, 6, *engine.tokenize(engine.apply_template(messages), add_special=False))


def test_what_was_cut_is_there_too(engine: Engine) -> None:
    ids = [5, 6, 7, 8] * 20
    found = engine.generate(ids, SHORT, on_overflow="truncate", prompt_token_ids=True)
    assert found.usage.dropped_prompt_tokens
    assert found.prompt_token_ids == tuple(ids)


def test_they_come_with_the_first_chunk(engine: Engine) -> None:
    first, *others = engine.stream(STORY, SHORT, prompt_token_ids=True)
    assert first.prompt_token_ids == tuple(engine.tokenize(STORY))
    assert all(chunk.prompt_token_ids is None for chunk in others)

    async def merged() -> tuple[int, ...] | None:
        stream = engine.astream(STORY, SHORT, prompt_token_ids=True)
        stream.merges = True
        return (await stream.completion()).prompt_token_ids

    assert asyncio.run(merged()) == first.prompt_token_ids


def test_it_is_true_or_false(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="prompt_token_ids is True or False"):
        engine.generate(STORY, SHORT, prompt_token_ids=1)  # type: ignore[arg-type]
