"""Responses: OpenAI's newer API over the same chats. Nothing is stored: each request has its whole conversation."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from ollama_engine.server import sse
from ollama_engine.server.errors import status_of
from ollama_engine.server.model_access import leased
from ollama_engine.server.openai.chat import DEFAULTS
from ollama_engine.server.openai.errors import error_body
from ollama_engine.server.openai.formats import answer_format
from ollama_engine.server.openai.logprobs import token_entries
from ollama_engine.server.openai.response_assembly import ResponseAssembly
from ollama_engine.server.openai.responses_input import ResponseRequest, chat_options, input_messages
from ollama_engine.server.requests.stored_defaults import conversation, sampling_params
from ollama_engine.server.requests.thinking import ways_of_effort
from ollama_engine.server.served import AnswerStream, ServedModel

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.request.results import Usage
    from ollama_engine.server.service import Service

__all__ = ["response", "response_events"]

LOGPROBS = "message.output_text.logprobs"
"""Named in "include" by requests for log-probabilities."""


async def response(service: Service, request: ResponseRequest) -> dict[str, Any]:
    """The whole answer of a request that does not stream."""
    whole: dict[str, Any] = {}
    async with aclosing(_events(service, request)) as events:
        async for event in events:
            whole = event.get("response", whole)
    return whole


async def response_events(service: Service, request: ResponseRequest) -> AsyncGenerator[bytes, None]:
    """The events of a request that streams. An error behind the first becomes "response.failed"."""
    number = 0
    last: dict[str, Any] = {}
    try:
        async with aclosing(_events(service, request)) as events:
            async for event in events:
                last = event.get("response", last)
                yield sse.event({**event, "sequence_number": number}, event["type"])
                number += 1
    except Exception as error:
        if not number:
            raise
        said = error_body(error, status_of(error))["error"]
        failed = {**last, "status": "failed", "error": {"code": "server_error", "message": said["message"]}}
        yield sse.event({"type": "response.failed", "response": failed, "sequence_number": number}, "response.failed")


async def _events(service: Service, request: ResponseRequest) -> AsyncGenerator[dict[str, Any], None]:
    """Events, without their numbers; the last has the whole response."""
    request.refuse_what_needs_a_store()
    async with leased(service, request.model, "completion") as model:
        body, assembly, reasoning_tokens, began = _body(request), ResponseAssembly(), 0, False
        last: ChatChunk | None = None
        async with aclosing(_chat(model, request)) as chunks:
            async for chunk in chunks:
                if not began:
                    began = True
                    yield {"type": "response.created", "response": body}
                    yield {"type": "response.in_progress", "response": body}
                last = chunk
                if chunk.reasoning and not chunk.content:
                    reasoning_tokens += len(chunk.tokens)
                entries = await token_entries(model, chunk.logprobs) if chunk.logprobs else []
                for event in assembly.feed(chunk, entries):
                    yield event
        assert last is not None
        assert last.usage is not None
        yield _ended(body, assembly, last.finish_reason == "length", _usage(last.usage, reasoning_tokens))


def _chat(model: ServedModel, request: ResponseRequest) -> AnswerStream[ChatChunk]:
    values = request.sampling()
    if request.max_output_tokens is not None:
        values["max_tokens"] = request.max_output_tokens
    if request.top_logprobs or LOGPROBS in (request.include or ()):
        values["logprobs"] = request.top_logprobs or 0
    options = chat_options(request)
    form = answer_format(request.wanted_format(), "text.format.schema")
    if form is not None:
        options["format"] = form
    params = sampling_params(model.stored, values, DEFAULTS)
    options["think"] = ways_of_effort(request.reasoning.effort if request.reasoning else None)
    return model.chat(conversation(model.stored, input_messages(request)), params, **options)


def _ended(body: dict[str, Any], assembly: ResponseAssembly, cut: bool, usage: dict[str, Any]) -> dict[str, Any]:
    status = "incomplete" if cut else "completed"
    details = {"reason": "max_output_tokens"} if cut else None
    whole = {
        **body, "status": status, "incomplete_details": details, "output": assembly.output, "usage": usage,
        "completed_at": None if cut else int(time.time()),
    }  # fmt: skip
    return {"type": f"response.{status}", "response": whole}


def _usage(usage: Usage, reasoning_tokens: int) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {"cached_tokens": usage.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    }


def _body(request: ResponseRequest) -> dict[str, Any]:
    """A response of which nothing has come yet: what was asked."""
    repeated = dict(_repeated(request))
    return {
        "id": f"resp_{uuid4().hex}",
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "output": [],
        "previous_response_id": None,
        "store": False,
        "usage": None,
        **repeated,
    }


def _repeated(request: ResponseRequest) -> Iterator[tuple[str, Any]]:
    """Fields of the request that the response repeats, with their defaults."""
    given = request.model_dump(by_alias=True, exclude_none=True)
    yield "model", request.model
    for name in ("instructions", "max_output_tokens", "user", "top_logprobs"):
        yield name, given.get(name)
    yield "metadata", given.get("metadata", {})
    yield "parallel_tool_calls", given.get("parallel_tool_calls", True)
    yield "reasoning", {"effort": None, "summary": None, **given.get("reasoning", {})}
    yield "temperature", given.get("temperature", DEFAULTS["temperature"])
    yield "top_p", given.get("top_p", DEFAULTS["top_p"])
    yield "text", {"format": {"type": "text"}, **given.get("text", {})}
    yield "tool_choice", given.get("tool_choice", "auto")
    yield "tools", given.get("tools", [])
    yield "truncation", given.get("truncation", "disabled")
