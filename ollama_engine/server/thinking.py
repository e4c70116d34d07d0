"""Reasoning asked for by a level: as the model's template has it, where it has levels or only a switch."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ollama_engine.errors import EngineError
from ollama_engine.server.served import ServedModel

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.sample import SamplingParams

__all__ = ["chat_thinking", "think_of_effort"]

LEVELS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def think_of_effort(effort: str | None, model: ServedModel) -> Any:
    """The engine's `think` for an API's effort. A model that does not think has nothing to turn off."""
    if effort == "none":
        return False if "thinking" in model.facts.capabilities else None
    return None if effort is None else LEVELS[effort]


async def chat_thinking(
    model: ServedModel, messages: Sequence[object], params: SamplingParams, think: Any, options: Mapping[str, Any]
) -> AsyncGenerator[ChatChunk, None]:
    """`model.chat`. Where the template has a switch for reasoning, but no levels, a level turns it on."""
    try:
        async with aclosing(model.chat(messages, params, think=think, **options)) as stream:
            first = await anext(stream)
            yield first
            async for chunk in stream:
                yield chunk
            return
    except EngineError as error:
        if not isinstance(think, str) or error.option != "think":
            raise
    async with aclosing(model.chat(messages, params, think=True, **options)) as stream:
        async for chunk in stream:
            yield chunk
