"""`drop_messages`: which messages are left out of a conversation that is longer than the context; `truncate_prompt`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError, ContextOverflowError
from ollama_engine.runner.chat.fitting import fewest_dropped

SHORT = SamplingParams(max_tokens=2, temperature=0)


@pytest.mark.parametrize("n_droppable", [*range(12), 63, 64, 65, 1000])
@pytest.mark.parametrize("num_ctx", [1, 7, 64, 100_000])
def test_the_fewest_are_dropped_and_no_number_is_tried_twice(n_droppable: int, num_ctx: int) -> None:
    # A message has a token at least, so num_ctx of them never fit.
    least = max(0, n_droppable - num_ctx + 1)
    for needed in {0, 1, n_droppable // 2, n_droppable - 1, n_droppable, n_droppable + 1, least}:
        if needed < least:
            continue
        tried: list[int] = []

        def fits(n_dropped: int, needed: int = needed, tried: list[int] = tried) -> bool:
            tried.append(n_dropped)
            return n_dropped >= needed

        assert fewest_dropped(n_droppable, num_ctx, fits) == min(needed, n_droppable)
        assert len(set(tried)) == len(tried) <= 1 + n_droppable.bit_length()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=256, parallel=1, threads=1) as engine:
        yield engine


def conversation(n: int) -> list[dict[str, str]]:
    old = [{"role": "user", "content": f"One day fox number {number} met a dog. " * 3} for number in range(n)]
    return [{"role": "system", "content": "Be brief."}, *old, {"role": "user", "content": "Tell me of a fox."}]


def n_tokens(engine: Engine, messages: list[dict[str, str]]) -> int:
    return len(engine.tokenize(engine.apply_template(messages)))


def test_one_message_more_would_not_fit(engine: Engine) -> None:
    messages = conversation(30)
    answer = engine.chat(messages, SHORT, drop_messages=True)
    assert 0 < answer.dropped_messages < 30
    kept = [messages[0], *messages[1 + answer.dropped_messages :]]
    assert n_tokens(engine, kept) == answer.usage.prompt_tokens < 256
    assert n_tokens(engine, [messages[0], *messages[answer.dropped_messages :]]) >= 256
    assert engine.apply_template(messages, drop_messages=True) == engine.apply_template(kept)
    assert engine.chat(kept, SHORT).content == answer.content


def test_nothing_is_dropped_unless_it_is_asked_for(engine: Engine) -> None:
    assert engine.chat(conversation(1), SHORT, drop_messages=True).dropped_messages == 0
    with pytest.raises(ContextOverflowError):
        engine.chat(conversation(30), SHORT)
    with pytest.raises(ConfigError, match="drop_messages is True or False"):
        engine.chat(conversation(1), SHORT, drop_messages=1)  # type: ignore[arg-type]


def test_what_cannot_be_dropped_is_refused_or_cut(engine: Engine) -> None:
    messages = [{"role": "user", "content": "One day a fox ran. " * 300}]
    with pytest.raises(ContextOverflowError):
        engine.chat(messages, SHORT, drop_messages=True)
    cut = engine.chat(messages, SHORT, drop_messages=True, on_overflow="truncate")
    assert cut.usage.dropped_prompt_tokens > 1000
    assert cut.dropped_messages == 0


def test_a_prompt_that_may_not_be_cut_although_its_answer_may_shift() -> None:
    with Engine(demo.path(), num_ctx=64, parallel=1, threads=1) as engine:
        long = SamplingParams(max_tokens=100, temperature=0)
        answer = engine.generate("One day", long, on_overflow="shift", truncate_prompt=False)
        assert answer.usage.shifted_tokens > 0
        for policy in ("shift", "truncate"):
            with pytest.raises(ContextOverflowError, match="the prompt has"):
                engine.generate("One day a fox ran. " * 30, SHORT, on_overflow=policy, truncate_prompt=False)  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match="truncate_prompt is True or False"):
            engine.generate("One day", SHORT, truncate_prompt=0)  # type: ignore[arg-type]
