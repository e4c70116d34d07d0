"""Messages: a request to a chat of a served model, and its chunks to Anthropic's message and events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ollama_engine.errors import EngineError
from ollama_engine.sample import SamplingParams
from ollama_engine.segments import Media
from ollama_engine.server import sse
from ollama_engine.server.anthropic.assembly import MessageAssembly
from ollama_engine.server.anthropic.conversation import chat_options, engine_messages, thinking_ways
from ollama_engine.server.anthropic.schemas import CountRequest, MessagesRequest
from ollama_engine.server.model_access import leased
from ollama_engine.server.requests.stored_defaults import conversation, sampling_params
from ollama_engine.server.served import AnswerStream, ServedModel

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.request.results import Usage
    from ollama_engine.segments import Segment
    from ollama_engine.server.service import Service

__all__ = ["count_tokens", "message", "message_events"]

DEFAULTS = {"temperature": 1.0, "top_p": 1.0}
"""Defaults that Anthropic's API documents, where neither the request nor the model's parameters say."""
REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
FOR_TEMPLATES = ("tools",)


async def message(service: Service, request: MessagesRequest) -> dict[str, Any]:
    """The whole answer of a request that does not stream."""
    whole: dict[str, Any] = {}
    async with aclosing(_events(service, request)) as events:
        async for event in events:
            if event["type"] == "message_start":
                whole = event["message"]
            elif event["type"] == "message_delta":
                whole = {**whole, **event["delta"], "usage": event["usage"]}
    return whole


async def message_events(service: Service, request: MessagesRequest) -> AsyncGenerator[bytes, None]:
    """The events of a request that streams."""
    async with aclosing(_events(service, request)) as events:
        async for event in events:
            yield sse.event(event, event["type"])
            if event["type"] == "message_start":
                yield sse.event({"type": "ping"}, "ping")


async def _events(service: Service, request: MessagesRequest) -> AsyncGenerator[dict[str, Any], None]:
    """All events but pings. The list of the message's content, empty when the first is told, fills until the last."""
    async with leased(service, request.model, "completion") as model:
        assembly, tokens, began = MessageAssembly(), list[int](), False
        last: ChatChunk | None = None
        async with aclosing(_chat(model, request)) as chunks:
            async for chunk in chunks:
                if not began:
                    began = True
                    yield {"type": "message_start", "message": _message(request, assembly)}
                last = chunk
                tokens += chunk.tokens
                for event in assembly.feed(chunk):
                    yield event
        assert last is not None
        assert last.usage is not None
        assert last.finish_reason is not None
        stopped_by = (
            await _stop_text(model, tokens, request.stop_sequences or ()) if last.finish_reason == "stop" else None
        )
        reason = REASONS[last.finish_reason] if stopped_by is None else "stop_sequence"
        delta = {"stop_reason": reason, "stop_sequence": stopped_by}
        yield {"type": "message_delta", "delta": delta, "usage": _usage(last.usage)}
        yield {"type": "message_stop"}


def _chat(model: ServedModel, request: MessagesRequest) -> AnswerStream[ChatChunk]:
    values = {
        "max_tokens": request.max_tokens,
        "temperature": request.temperature,
        "top_p": request.top_p,
        "top_k": request.top_k,
        "stop": request.stop_sequences,
    }
    params = sampling_params(model.stored, values, DEFAULTS)
    messages = conversation(model.stored, engine_messages(request))
    return model.chat(messages, params, think=thinking_ways(request), **chat_options(request))


def _message(request: MessagesRequest, assembly: MessageAssembly) -> dict[str, Any]:
    return {
        "id": f"msg_{uuid4().hex}",
        "type": "message",
        "role": "assistant",
        "model": request.model,
        "content": assembly.content,
        "stop_reason": None,
        "stop_sequence": None,
        # Counted when the prompt has been computed: message_delta has the numbers, which take the place of these.
        "usage": {"input_tokens": 0, "output_tokens": 0},
    }


def _usage(usage: Usage) -> dict[str, Any]:
    """Tokens; those of the prompt that were cached do not count as input."""
    return {
        "input_tokens": usage.prompt_tokens - usage.cached_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
    }


async def _stop_text(model: ServedModel, tokens: Sequence[int], stops: Sequence[str]) -> str | None:
    """The stop text that ended an answer: the first in the text of its tokens, which the answer leaves out."""
    if not stops:
        return None
    text = await model.detokenize(tokens)
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    return min(found)[1] if found else None


# -- counting ----------------------------------------------------------------------------------------------------------


async def count_tokens(service: Service, request: CountRequest) -> dict[str, int]:
    """How many tokens a conversation has as a prompt.

    Those of a text are counted without computing it; a prompt with images is computed, and stays in the prefix cache
    for the request that follows.
    """
    async with leased(service, request.model, "completion") as model:
        segments = await _prompt(model, request)
        if any(isinstance(segment, Media) for segment in segments):
            return {"input_tokens": await _computed(model, segments)}
        return {"input_tokens": len(await model.tokenize(segments))}


async def _prompt(model: ServedModel, request: CountRequest) -> list[Segment]:
    messages = conversation(model.stored, engine_messages(request))
    options = {name: value for name, value in chat_options(request).items() if name in FOR_TEMPLATES}
    *others, last = thinking_ways(request)
    for think in others:
        try:
            return await model.apply_template(messages, think=think, **options)
        except EngineError as error:
            if error.option != "think":
                raise
    return await model.apply_template(messages, think=last, **options)


async def _computed(model: ServedModel, segments: list[Segment]) -> int:
    async with aclosing(model.generate(segments, SamplingParams(max_tokens=0))) as chunks:
        async for chunk in chunks:
            if chunk.usage is not None:
                return chunk.usage.prompt_tokens
    raise AssertionError("an answer ends with its usage")
