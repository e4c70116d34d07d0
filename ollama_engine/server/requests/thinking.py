"""Reasoning as clients ask for it: tried in the ways that a model's template may have it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ollama_engine.errors import EngineError
from ollama_engine.server.served import ServedModel

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.sample import SamplingParams

__all__ = ["NO_REASONING", "REASONING", "Ways", "chat_thinking", "ways_of_effort"]

Ways = tuple[bool | str | None, ...]
"""Values of the engine's `think`, the wanted one first; another one is taken where the template has no such switch."""

NO_REASONING: Ways = (False, None)
"""A model that always reasons does so; its reasoning comes apart from the answer."""
REASONING: Ways = (True,)
LEVELS = {"minimal": "low", "low": "low", "medium": "medium", "high": "high", "xhigh": "high", "max": "high"}


def ways_of_effort(effort: str | None) -> Ways:
    """For an effort of OpenAI's. Where the template has a switch, but no levels, every level turns it on."""
    if effort is None:
        return (None,)
    return NO_REASONING if effort == "none" else (LEVELS[effort], True)


async def chat_thinking(
    model: ServedModel, messages: Sequence[object], params: SamplingParams, ways: Ways, options: Mapping[str, Any]
) -> AsyncGenerator[ChatChunk, None]:
    """`model.chat`, with the first of these ways that the template has. Raises as it does with the last of them."""
    for think in ways:
        try:
            async with aclosing(model.chat(messages, params, think=think, **options)) as stream:
                async for chunk in stream:
                    yield chunk
            return
        except EngineError as error:  # about `think` only before the first chunk
            if error.option != "think" or think == ways[-1]:
                raise
