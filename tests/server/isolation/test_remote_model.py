"""A model in a process of its own answers as one in this process does, and is cancelled as well."""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.errors import ConfigError
from ollama_engine.multimodal.source import image_bytes
from ollama_engine.runner.chat.results import collect_chat
from ollama_engine.runner.request.results import Chunk, collect
from ollama_engine.sample import SamplingParams
from ollama_engine.sample.constraints.formats import Choice
from ollama_engine.segments import Media, Text
from ollama_engine.server.served import ServedModel
from tests.server.isolation.conftest import Pair

GREEDY = SamplingParams(temperature=0, max_tokens=8)
SEEDED = SamplingParams(temperature=1.5, seed=7, max_tokens=8, logprobs=2, prompt_logprobs=1, logit_bias={300: -5.0})
MESSAGES = [{"role": "user", "content": "Tell me a story"}]
TOOL = {"type": "function", "function": {"name": "look", "parameters": {
    "type": "object", "properties": {"at": {"type": "string", "maxLength": 4}}, "required": ["at"]}}}  # fmt: skip

Ask = Callable[[ServedModel], Awaitable[Any]]


class Age(BaseModel):
    years: int


async def answer(stream: Any) -> Any:
    """The whole answer: how many of its tokens come as one chunk depends on who falls behind."""
    found = [chunk async for chunk in stream]
    return timeless(collect(found) if isinstance(found[0], Chunk) else collect_chat(found))


def timeless(found: Any) -> Any:
    """Without seconds, what depends on them (drafts), and what is random: ids of tool calls."""
    if isinstance(found, (list, tuple)) and not hasattr(found, "_fields"):
        return [timeless(item) for item in found]
    if hasattr(found, "queue_seconds"):
        seconds = [field.name for field in fields(found) if field.name.endswith("_seconds")]
        drafts = {"drafted_tokens": 0, "accepted_tokens": 0}
        return replace(found, cached_tokens=0, **drafts, **dict.fromkeys(seconds, 0.0))
    if is_dataclass(found) and not isinstance(found, type):
        return (type(found).__name__, {name: timeless(getattr(found, name)) for name in found.__dataclass_fields__
                                       if name not in ("id", "reader")})  # fmt: skip
    return found


def same(pair: Pair, ask: Ask) -> Any:
    async def asked(model: ServedModel) -> Any:
        try:
            return await ask(model)
        except Exception as error:
            return type(error), str(error)

    local, remote = pair.run(asked(pair.local)), pair.run(asked(pair.remote))
    assert remote == local
    return local


ASKED: dict[str, Ask] = {
    "greedy": lambda m: answer(m.generate("Once upon a time", GREEDY)),
    "seeded": lambda m: answer(m.generate("Once upon a time", SEEDED)),
    "token ids": lambda m: answer(m.generate([5, 6, 7], GREEDY)),
    "segments": lambda m: answer(m.generate([Text("Once"), Text(" upon")], GREEDY)),
    "chat": lambda m: answer(m.chat(MESSAGES, SEEDED)),
    "a template of the request": lambda m: answer(m.chat(MESSAGES, GREEDY, template=GoTemplate("{{ .Prompt }} So"))),
    "schema": lambda m: answer(m.generate("Once", replace(GREEDY, max_tokens=60), format={"type": "boolean"})),
    "forced tool": lambda m: answer(m.chat(MESSAGES, replace(GREEDY, max_tokens=80), tools=[TOOL],
                                           tool_choice="required")),
    "too long": lambda m: answer(m.generate([5] * 300, GREEDY)),
    "shifted": lambda m: answer(m.generate([5] * 250, replace(GREEDY, max_tokens=20), on_overflow="shift")),
    "no such option": lambda m: answer(m.generate("x", GREEDY, temperatur=1)),
    "no template": lambda m: m.apply_template([{"role": 5}]),
    "tokenize": lambda m: m.tokenize("Once\ud83d\ude00"),
    "tokenize bare": lambda m: m.tokenize("Once", add_special=False, parse_special=False),
    "detokenize": lambda m: m.detokenize([300, 301, 302]),
    "token bytes": lambda m: m.token_bytes([0, 1, 300]),
    "bad token": lambda m: m.token_bytes([10**6]),
    "apply template": lambda m: m.apply_template(MESSAGES, add_generation_prompt=False),
    "rank": lambda m: m.rank("what", ["this", "that"]),
    "images of a text model": lambda m: answer(m.generate("[img]", GREEDY, images=[b"no image"])),
}  # fmt: skip


@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED)
def test_the_same_answer(text_models: Pair, ask: Ask) -> None:
    assert same(text_models, ask)


def test_embeddings_are_the_same(text_models: Pair) -> None:
    async def ask(model: ServedModel) -> Any:
        found = await model.embed(["a text", [5, 6]], normalize=True, dimensions=8, truncate=True)
        return [(row.vector.tolist(), row.prompt_tokens, row.dropped_tokens) for row in found]

    assert len(same(text_models, ask)[0][0]) == 8


@pytest.mark.slow
def test_images_are_seen(vision_models: Pair) -> None:
    red = np.zeros((32, 32, 3), np.uint8)
    red[:, :, 0] = 255
    image = image_bytes(red)
    first = same(vision_models, lambda m: answer(m.generate("[img] What is it?", GREEDY, images=[image])))
    again = same(vision_models, lambda m: answer(m.generate([Media(image), Text(" What is it?")], GREEDY)))
    assert first[1]["tokens"] == again[1]["tokens"]
    same(vision_models, lambda m: answer(m.chat([{"role": "user", "content": "What?", "images": [image]}], GREEDY)))
    same(vision_models, lambda m: answer(m.generate("[img]", GREEDY, images=[b"no image"])))


def test_formats_are_read_at_the_callers_end(text_models: Pair) -> None:
    async def ask(model: ServedModel, wanted: object, tokens: int = 60) -> Any:
        stream = model.generate("How old? ", SamplingParams(temperature=0, max_tokens=tokens), format=wanted)
        found = [chunk async for chunk in stream]
        reader = found[-1].reader
        assert reader is not None
        return reader.read("".join(chunk.text for chunk in found), None)

    assert isinstance(same(text_models, lambda m: ask(m, Age)), Age)
    assert same(text_models, lambda m: ask(m, {"type": "boolean"})) in (True, False)
    assert same(text_models, lambda m: ask(m, Choice(["yes", "no"]))) in ("yes", "no")
    kind, message = same(text_models, lambda m: ask(m, {"type": "string", "minLength": 100}, 2))
    assert kind.__name__ == "IncompleteError"
    assert "max_tokens" in message


def test_functions_do_not_cross(text_models: Pair) -> None:
    async def ask() -> None:
        text_models.remote.generate("x", GREEDY, logits_processors=[lambda ids, logits: None])

    with pytest.raises(ConfigError, match="function cannot be given to a model in a process of its own"):
        text_models.run(ask())


def test_looking_inside(text_models: Pair) -> None:
    async def ask() -> None:
        metrics = await text_models.remote.metrics()
        assert metrics["completion_tokens"] > 0
        assert metrics["requests"]["stop"] + metrics["requests"]["length"] > 0
        assert set(metrics) == set(await text_models.local.metrics())
        assert (await text_models.remote.steps(5))[-1].spans
        assert "traceEvents" in await text_models.remote.trace()
        for priority in (None, 1):
            assert not await text_models.remote.steer(10**6, priority)
        assert text_models.remote.facts == text_models.local.facts

    text_models.run(ask())


ENDS = {2556: -math.inf, 2559: -math.inf}
"""The tokens that end a story of the demo model, banned."""


async def endless(model: ServedModel) -> Any:
    stream = model.generate("Once", SamplingParams(max_tokens=10**6, logit_bias=ENDS), on_overflow="shift")
    await anext(aiter(stream))
    (slot,) = await model.slots()
    assert slot.completion_tokens
    return stream


async def idle(model: ServedModel) -> None:
    end = time.monotonic() + 60
    while await model.slots():
        assert time.monotonic() < end, "the request goes on in the process"
        await asyncio.sleep(0.01)


def test_closing_an_answer_cancels_it_in_the_process(text_models: Pair) -> None:
    async def ask() -> None:
        stream = await endless(text_models.remote)
        await stream.aclose()
        await stream.aclose()
        await idle(text_models.remote)
        assert [chunk async for chunk in stream] == []

    text_models.run(ask())


def test_cancelling_who_waits_cancels_it_in_the_process(text_models: Pair) -> None:
    async def ask() -> None:
        stream = await endless(text_models.remote)

        async def read() -> None:
            async for _ in stream:
                pass

        task = asyncio.create_task(read())
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.wait((task,))
        assert task.cancelled()
        await idle(text_models.remote)

    text_models.run(ask())


def test_dropping_an_answer_cancels_it_in_the_process(text_models: Pair) -> None:
    async def ask() -> None:
        stream = await endless(text_models.remote)
        del stream
        gc.collect()
        await idle(text_models.remote)

    text_models.run(ask())
