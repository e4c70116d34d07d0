"""Chat completions: a request to chats of a served model, and their chunks to OpenAI's objects."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ollama_engine.chat.events import ToolCallDelta, ToolCallEnd, ToolCallStart
from ollama_engine.runner.chat.results import ChatChunk
from ollama_engine.server import sse
from ollama_engine.server.errors import ApiError
from ollama_engine.server.interleaving import interleaved
from ollama_engine.server.model_access import leased
from ollama_engine.server.openai.logprobs import chat_logprobs
from ollama_engine.server.openai.schemas import ChatRequest
from ollama_engine.server.openai.usage import usage_body
from ollama_engine.server.requests.messages import as_dicts, engine_messages, engine_tool_choice, engine_tools
from ollama_engine.server.requests.stored_defaults import conversation, sampling_params
from ollama_engine.server.requests.thinking import ways_of_effort
from ollama_engine.server.served import AnswerStream, ServedModel

if TYPE_CHECKING:
    from ollama_engine.runner.request.results import Usage
    from ollama_engine.sample import SamplingParams
    from ollama_engine.server.service import Service

__all__ = ["DEFAULTS", "chat_completion", "chat_events", "numbered_seeds"]

DEFAULTS = {"temperature": 1.0, "top_p": 1.0}
"""Defaults that OpenAI's API documents, where neither the request nor the model's parameters say."""

Starts = list[Callable[[], AnswerStream[ChatChunk]]]


async def chat_completion(service: Service, request: ChatRequest) -> dict[str, Any]:
    """The whole answer of a request that does not stream."""
    async with leased(service, request.model, "completion") as model:
        choices = [ChatChoice() for _ in range(request.n or 1)]
        async with aclosing(interleaved(_starts(model, request))) as chunks:
            async for number, chunk in chunks:
                choices[number].add(chunk)
        return {
            **_head(model, request.model, "chat.completion"),
            "choices": [await choice.whole(model, number) for number, choice in enumerate(choices)],
            "usage": _usage(choices),
        }


async def chat_events(service: Service, request: ChatRequest) -> AsyncGenerator[bytes, None]:
    """The events of a request that streams."""
    with_usage = bool(request.stream_options and request.stream_options.include_usage)
    async with leased(service, request.model, "completion") as model:
        choices = [ChatChoice() for _ in range(request.n or 1)]
        head = _head(model, request.model, "chat.completion.chunk")
        tail = {"usage": None} if with_usage else {}
        async with aclosing(interleaved(_starts(model, request))) as chunks:
            async for number, chunk in chunks:
                choices[number].count(chunk)
                for entry in await choices[number].pieces(model, number, chunk):
                    yield sse.event({**head, "choices": [entry], **tail})
        if with_usage:
            yield sse.event({**head, "choices": [], "usage": _usage(choices)})
    yield sse.DONE


@dataclass
class ChatChoice:
    """One of the answers to a request, as far as it has come."""

    chunks: list[ChatChunk] = field(default_factory=list)
    usage: Usage | None = None
    reasoning_tokens: int = 0
    began: bool = False
    answers: bool = False

    def count(self, chunk: ChatChunk) -> None:
        """Note what a chunk took. Tokens before the first of the answer are reasoning, if there is any."""
        self.answers = self.answers or bool(chunk.content or chunk.tool_events)
        if chunk.reasoning and not self.answers:
            self.reasoning_tokens += len(chunk.tokens)
        self.usage = chunk.usage or self.usage

    def add(self, chunk: ChatChunk) -> None:
        """Keep a chunk for the whole."""
        self.count(chunk)
        self.chunks.append(chunk)

    async def pieces(self, model: ServedModel, number: int, chunk: ChatChunk) -> list[dict[str, Any]]:
        """A chunk as entries of "choices". The reason of the end comes alone, behind all that is to be read."""
        delta: dict[str, Any] = {}
        if chunk.content:
            delta["content"] = chunk.content
        if chunk.reasoning:
            delta |= {"reasoning_content": chunk.reasoning, "reasoning": chunk.reasoning}
        calls = _by_call([entry for event in chunk.tool_events if (entry := _call_entry(event)) is not None])
        if calls:
            delta["tool_calls"] = calls
        entries: list[dict[str, Any]] = []
        if delta or chunk.logprobs or (chunk.finish_reason is not None and not self.began):
            if not self.began:
                delta = {"role": "assistant", "content": "", **delta}
                self.began = True
            logprobs = await chat_logprobs(model, chunk.logprobs) if chunk.logprobs else None
            entries.append({"index": number, "delta": delta, "logprobs": logprobs, "finish_reason": None})
        if chunk.finish_reason is not None:
            entries.append({"index": number, "delta": {}, "logprobs": None, "finish_reason": chunk.finish_reason})
        return entries

    async def whole(self, model: ServedModel, number: int) -> dict[str, Any]:
        """All chunks as an entry of "choices"."""
        content = "".join(chunk.content for chunk in self.chunks)
        reasoning = "".join(chunk.reasoning for chunk in self.chunks)
        events = [event for chunk in self.chunks for event in chunk.tool_events]
        calls = [event.call for event in events if isinstance(event, ToolCallEnd)]
        message: dict[str, Any] = {"role": "assistant", "content": content or (None if calls else ""), "refusal": None}
        if reasoning:
            message |= {"reasoning_content": reasoning, "reasoning": reasoning}
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_text}}
                for call in calls
            ]
        entries = [chunk.logprobs for chunk in self.chunks if chunk.logprobs is not None]
        logprobs = [entry for part in entries for entry in part]
        return {
            "index": number,
            "message": message,
            "logprobs": await chat_logprobs(model, logprobs) if entries else None,
            "finish_reason": self.chunks[-1].finish_reason,
        }


def _by_call(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry for each call: clients of 2025 keep only the last one of several with the same index."""
    calls: list[dict[str, Any]] = []
    for entry in entries:
        if calls and calls[-1]["index"] == entry["index"]:
            calls[-1]["function"]["arguments"] += entry["function"]["arguments"]
        else:
            calls.append(entry)
    return calls


def _call_entry(event: object) -> dict[str, Any] | None:
    """A tool event as an entry of a delta's "tool_calls"."""
    if isinstance(event, ToolCallStart):
        function = {"name": event.name, "arguments": ""}
        return {"index": event.index, "id": event.id, "type": "function", "function": function}
    if isinstance(event, ToolCallDelta):
        return {"index": event.index, "function": {"arguments": event.arguments_text}}
    return None


def _usage(choices: list[ChatChoice]) -> dict[str, Any]:
    usages = [choice.usage for choice in choices if choice.usage is not None]
    return usage_body(usages[:1], usages, reasoning_tokens=sum(choice.reasoning_tokens for choice in choices))


def _head(model: ServedModel, name: str, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": name,
        "system_fingerprint": f"fp_{model.stored.digest[:10]}",
    }


# -- requests to the engine --------------------------------------------------------------------------------------------


def _starts(model: ServedModel, request: ChatRequest) -> Starts:
    """A function for each of the answers, which starts it."""
    messages = conversation(model.stored, engine_messages(as_dicts(request.messages)))
    effort = request.reasoning_effort or (request.reasoning.effort if request.reasoning else None)
    options = _chat_options(request) | {"think": ways_of_effort(effort)}
    return [
        partial(model.chat, messages, params, **options)
        for params in numbered_seeds(_params(model, request), request.n or 1)
    ]


def _params(model: ServedModel, request: ChatRequest) -> SamplingParams:
    values = request.sampling()
    if request.max_completion_tokens not in (None, -1):
        values["max_tokens"] = request.max_completion_tokens
    if request.top_logprobs and not request.logprobs:
        raise ApiError(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    if request.logprobs:
        values["logprobs"] = request.top_logprobs or 0
    return sampling_params(model.stored, values, DEFAULTS)


def numbered_seeds(params: SamplingParams, n: int) -> list[SamplingParams]:
    """Parameters of n answers to one prompt: with a seed, answer i has `seed + i`."""
    if params.seed is None:
        return [params] * n
    return [replace(params, seed=(params.seed + i) % (1 << 64)) for i in range(n)]


def _chat_options(request: ChatRequest) -> dict[str, Any]:
    choice, tools = engine_tool_choice(request.tool_choice, engine_tools(request.tools))
    options = {
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": request.parallel_tool_calls,
        "format": request.wanted_format(),
        "template_variables": request.chat_template_kwargs,
    }
    if (request.model_extra or {}).get("functions"):
        raise ApiError(400, "functions are called tools now; pass them in tools", param="functions")
    return {name: value for name, value in options.items() if value is not None}
