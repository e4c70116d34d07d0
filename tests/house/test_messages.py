"""What callers are shown: errors that say what to do, and objects that print as what they are."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ConfigError, ContextOverflowError
from tests.support.tiny import write_tiny_llama

THREE = SamplingParams(temperature=0, max_tokens=3, logit_bias={318: float("-inf"), 319: float("-inf")})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=1).path
    with Engine(path, num_ctx=64, threads=1) as made:
        yield made


@pytest.mark.parametrize(("prompt", "told"), [
    ([], "the prompt is empty.* a list of prompts"),
    ([[], [1]], "the prompt is empty"),
    ((1, "two"), r"but \[1\] of this tuple is a str; several prompts go into a list, to generate"),
    ([1, "two"], r"but \[1\] of this list is a str"),
    ([True], r"but \[0\] of this list is a bool"),
    (["one", 2], r"^prompts\[1\]: a prompt is a str or a sequence of token ids, got int"),
    (["one", [1, "two"]], r"^prompts\[1\]: .* but \[1\] of this list is a str"),
    (b"bytes", "got bytes; decode it"),
    (5, "a prompt is a str or a sequence of token ids, got int"),
], ids=str)  # fmt: skip
def test_what_is_no_prompt(engine: Engine, prompt: Any, told: str) -> None:
    async def ask() -> None:
        await engine.agenerate(prompt)

    calls: list[Callable[[], object]] = [lambda: engine.generate(prompt, n=2), lambda: asyncio.run(ask())]
    for call in (lambda: engine.generate(prompt), *calls):
        with pytest.raises(ConfigError, match=told):
            call()


def test_advice_fits_the_call(engine: Engine) -> None:
    """What a call does not take is not recommended by it."""
    long, session = [1] * 65, engine.session()
    larger, cut = "choose a larger num_ctx", 'let it be cut with on_overflow="truncate"'
    calls: list[tuple[Callable[[], object], str]] = [
        (lambda: engine.logits(long), f"shorten it or {larger}"),
        (lambda: engine.generate(long), f'shorten it, {larger}, or {cut} or on_overflow="shift"'),
        (lambda: session.append(long), f'append less or rewind it, {larger}, or {cut} or on_overflow="shift"'),
        (lambda: engine.embed(long), f"shorten it, {larger} where the model can take it, or {cut}"),
    ]
    for call, advice in calls:
        with pytest.raises(ContextOverflowError) as told:
            call()
        assert str(told.value).endswith(f" 65 tokens, but num_ctx is 64; {advice}")
    for several, advice in (
        (lambda: engine.logits(["a"]), "logits takes one prompt at a time"),
        (lambda: session.append(["a"]), "a session takes texts one by one"),
        (lambda: engine.stream(["a"]), "several prompts go into a list, to generate or agenerate"),
    ):
        with pytest.raises(ConfigError, match=rf"\[0\] of this list is a str; {advice}$"):
            several()
    with pytest.raises(ConfigError, match="are SamplingParams, got str: 'a'; append a text, then generate"):
        session.generate("a")  # type: ignore[arg-type]


def test_a_tuple_of_prompts_is_a_list_of_them(engine: Engine) -> None:
    """And one of whole numbers is one prompt, for answers as for embeddings."""
    answers = engine.generate(("ab", "c"), THREE)
    assert [answer.tokens for answer in answers] == [engine.generate(text, THREE).tokens for text in ("ab", "c")]
    assert engine.generate((1, 2), THREE).tokens == engine.generate([1, 2], THREE).tokens
    assert (engine.embed(("ab", "c")).shape, engine.embed((1, 2)).shape) == ((2, 64), (64,))


def test_where_no_event_loop_runs(engine: Engine) -> None:
    for call in (engine.astream, lambda prompt: engine.session().astream()):
        with pytest.raises(RuntimeError, match=r"no running event loop: .* call those that wait"):
            call([1])


def test_bytes_are_tokenized_as_their_text_is(engine: Engine) -> None:
    assert engine.tokenize(b"ab c") == engine.tokenize("ab c")
    assert engine.detokenize(engine.tokenize(b"\xff")) == "�"


def test_an_empty_first_text_is_the_begin_token(engine: Engine) -> None:
    """As an empty prompt is; what follows is what it is alone."""
    with engine.session() as session:
        session.append("")
        assert session.tokens == tuple(engine.tokenize(""))
        session.append("ab")
        session.append("")
        assert session.tokens == tuple(engine.tokenize("ab"))


def test_requests_and_streams_say_how_they_stand(engine: Engine) -> None:
    request = engine.submit([1, 2], THREE)
    next(request)
    assert repr(request).startswith("Request(2 prompt tokens, 1 answer tokens taken, ")
    request.result()
    assert repr(request) == "Request(2 prompt tokens, 3 answer tokens taken, ended)"
    with engine.stream([1, 2], THREE) as stream:
        assert repr(stream).startswith("Stream(open, of Request(2 prompt tokens, 0 answer tokens taken, ")
    assert repr(stream).startswith("Stream(closed, of ")

    async def look() -> tuple[str, str]:
        stream = engine.astream([1, 2], THREE)
        before = repr(stream)
        await stream.completion()
        return before, repr(stream)

    assert asyncio.run(look()) == ("AsyncStream(open)", "AsyncStream(ended)")


def test_usage_counts_microseconds(engine: Engine) -> None:
    usage = engine.generate([1, 2], THREE).usage
    for seconds in (usage.queue_seconds, usage.prompt_seconds, usage.completion_seconds):
        assert seconds == round(seconds, 6)
    assert usage.completion_seconds > 0


def test_signatures_show_no_defaults_of_defaults() -> None:
    assert "| None' = None" in str(inspect.signature(Engine.generate).parameters["params"])
    params = SamplingParams(temperature=0, stop="x", logit_bias={3: 1.0})
    assert repr(params) == "SamplingParams(temperature=0.0, stop=('x',), logit_bias={3: 1.0})"
    assert eval(repr(params), {"SamplingParams": SamplingParams}) == params


@pytest.mark.parametrize("prompt", [np.array(5), np.int64(5), 5])
def test_a_number_is_no_prompt(engine: Engine, prompt: Any) -> None:
    with pytest.raises(ConfigError, match="a prompt is a str or a sequence of token ids, got "):
        engine.generate(prompt, THREE)


def test_who_embeds_is_not_sent_to_generate(engine: Engine) -> None:
    with pytest.raises(ConfigError, match=r"several texts go into a list$"):
        engine.embed([1, "a"])  # type: ignore[list-item]
