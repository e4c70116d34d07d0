"""POST /api/chat."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ollama_engine.chat.events import ToolCallEnd
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.ollama.answer_lines import answer_lines, joined_field, joined_list
from ollama_engine.server.ollama.answers import (
    OllamaCall,
    chat_chunks,
    debug_line,
    head_of,
    load_only,
    long_prompts_refused,
    read_text_call,
    request_options,
    sampling,
    template_options,
)
from ollama_engine.server.ollama.messages import as_messages
from ollama_engine.server.ollama.ndjson import Line, respond
from ollama_engine.server.ollama.schemas import ChatRequest
from ollama_engine.server.requests.stored_defaults import conversation
from ollama_engine.server.service import Service, service_of

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.server.requests.prompts import Message

__all__ = ["router"]

router = APIRouter(tags=["ollama"], route_class=JsonRoute)

EMPTY: Line = {"message": {"role": "assistant", "content": ""}}
"""The fields of a line without text."""


@router.post("/api/chat")
async def chat(body: ChatRequest, request: Request, service: Annotated[Service, Depends(service_of)]) -> Response:
    """The assistant's answer to a conversation; without messages, the model is loaded (or unloaded)."""
    call = await read_text_call(service, body, "chat", request)
    if body.messages:
        messages = conversation(call.stored, await as_messages(body.messages), instead=["system"])
        lines = chat_lines(service, call, body, messages)
    else:
        lines = load_only(service, call, {**head_of(call), **EMPTY})
    return await respond(request, lines, joined_chat, stream=body.stream is not False)


async def chat_lines(
    service: Service, call: OllamaCall, body: ChatRequest, messages: list[Message]
) -> AsyncGenerator[Line, None]:
    """The lines of an answer. Raises as the engine does."""
    templating = await template_options(body.think, tools=body.tools or None)
    templating["drop_messages"] = body.truncate is not False
    async with service.manager.lease(call.stored, call.options.runner, call.keep_alive) as lease:
        model = lease.model
        if body.debug_render_only:
            yield debug_line(call, await model.apply_template(messages, **templating))
            return
        options = request_options(call, body, model) | templating
        chunks = chat_chunks(call, model, messages, sampling(call, body, model), options)
        with long_prompts_refused(body):
            async with aclosing(answer_lines(call, lease, chunks, EMPTY, chat_fields)) as lines:
                async for line in lines:
                    yield line


def chat_fields(chunk: ChatChunk) -> Line:
    """The message that a chunk adds to."""
    message: Line = {"role": "assistant", "content": chunk.content}
    if chunk.reasoning:
        message["thinking"] = chunk.reasoning
    calls = [tool_call(event) for event in chunk.tool_events if isinstance(event, ToolCallEnd)]
    if calls:
        message["tool_calls"] = calls
    return {"message": message}


def tool_call(event: ToolCallEnd) -> Line:
    """A call as Ollama's clients read it."""
    call = event.call
    return {"id": call.id, "function": {"index": event.index, "name": call.name, "arguments": call.arguments}}


def joined_chat(lines: list[Line]) -> Line:
    """The lines of an answer as one object."""
    if "message" not in lines[-1]:
        return lines[-1]
    messages = [line["message"] for line in lines]
    message: Line = {"role": "assistant", "content": joined_field(messages, "content")}
    thinking, calls = joined_field(messages, "thinking"), joined_list(messages, "tool_calls")
    message |= {"thinking": thinking} if thinking else {}
    message |= {"tool_calls": calls} if calls else {}
    logprobs = joined_list(lines, "logprobs")
    return {**lines[-1], "message": message} | ({"logprobs": logprobs} if logprobs else {})
