"""POST /api/generate."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ollama_engine.runner.chat.results import ChatChunk
from ollama_engine.segments import Text
from ollama_engine.server.errors import ApiError
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
from ollama_engine.server.ollama.messages import image_files
from ollama_engine.server.ollama.ndjson import Line, respond
from ollama_engine.server.ollama.schemas import GenerateRequest
from ollama_engine.server.requests.prompts import fill_in
from ollama_engine.server.service import Service, service_of

if TYPE_CHECKING:
    from ollama_engine.runner.request.prompts import Prompt
    from ollama_engine.segments import Segment
    from ollama_engine.server.requests.prompts import Message
    from ollama_engine.server.served import ServedModel

__all__ = ["router"]

router = APIRouter(tags=["ollama"], route_class=JsonRoute)

EMPTY: Line = {"response": ""}
"""The fields of a line without text."""


@router.post("/api/generate")
async def generate(
    body: GenerateRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """The answer to a prompt; without a prompt, the model is loaded (or unloaded)."""
    call = await read_text_call(service, body, "generate", request)
    if body.raw and (body.template or body.system or body.context):
        raise ApiError(400, "raw mode does not support template, system, or context")
    if not body.prompt and not body.images and not body.suffix:
        lines = load_only(service, call, {**head_of(call), **EMPTY})
    elif body.raw or body.suffix:
        lines = plain_lines(service, call, body, await image_files(body.images))
    else:
        lines = templated_lines(service, call, body, messages_of(call, body, await image_files(body.images)))
    return await respond(request, lines, joined_generate, stream=body.stream is not False)


async def plain_lines(
    service: Service, call: OllamaCall, body: GenerateRequest, images: list[bytes]
) -> AsyncGenerator[Line, None]:
    """The lines of an answer to a prompt as it is, or with a suffix. Raises as the engine does."""
    prompt: str | list[Segment] = body.prompt
    if body.suffix and not body.raw:
        source = body.template or call.stored.template
        prompt = await asyncio.to_thread(fill_in, call.name, call.stored, body.prompt, body.suffix, source)
    segments: list[Segment] = [Text(prompt, parse_special=True)] if isinstance(prompt, str) else prompt
    if body.debug_render_only:
        yield debug_line(call, segments)
        return
    async with service.manager.lease(call.stored, call.options.runner, call.keep_alive) as lease:
        model = lease.model
        options = request_options(call, body, model) | {"prompt_token_ids": not body.raw}
        chunks = plain_chunks(model, prompt, sampling(call, body, model), images, options)
        with long_prompts_refused(body):
            async with aclosing(answer_lines(call, lease, chunks, EMPTY, generate_fields)) as lines:
                async for line in lines:
                    yield line


async def plain_chunks(
    model: ServedModel, prompt: Prompt, params: Any, images: list[bytes], options: dict[str, Any]
) -> AsyncGenerator[ChatChunk, None]:
    """Chunks of the answer to a prompt that no template wrote."""
    async with aclosing(model.generate(prompt, params, images=images or None, **options)) as stream:
        async for chunk in stream:
            yield ChatChunk(
                content=chunk.text, tokens=chunk.tokens, logprobs=chunk.logprobs, finish_reason=chunk.finish_reason,
                usage=chunk.usage, prompt_token_ids=chunk.prompt_token_ids,
            )  # fmt: skip


async def templated_lines(
    service: Service, call: OllamaCall, body: GenerateRequest, messages: list[Message]
) -> AsyncGenerator[Line, None]:
    """The lines of an answer to a prompt as a conversation of one message. Raises as the engine does."""
    templating = await template_options(body.think, body.template)
    async with service.manager.lease(call.stored, call.options.runner, call.keep_alive) as lease:
        model = lease.model
        context = (body.context or [])[-model.facts.num_ctx :]  # no more of it is read
        if len(context) < len(body.context or ()):
            call.note(dropped_context=len(body.context or ()) - len(context))
        if body.debug_render_only:
            yield debug_line(call, await model.apply_template(messages, **templating))
            return
        options = request_options(call, body, model) | templating | {"prompt_token_ids": True}
        options |= {"context": context} if context else {}
        chunks = chat_chunks(call, model, messages, sampling(call, body, model), options)
        with long_prompts_refused(body):
            async with aclosing(answer_lines(call, lease, chunks, EMPTY, generate_fields)) as lines:
                async for line in lines:
                    yield line


def messages_of(call: OllamaCall, body: GenerateRequest, images: list[bytes]) -> list[Message]:
    """The conversation that a prompt stands for."""
    system = body.system or call.stored.system
    messages: list[Message] = [{"role": "system", "content": system}] if system else []
    if not body.context:
        messages += map(dict, call.stored.messages)
    message: Message = {"role": "user", "content": body.prompt}
    if images:
        message["images"] = images
    return [*messages, message]


def generate_fields(chunk: ChatChunk) -> Line:
    """The text of a chunk."""
    return {"response": chunk.content} | ({"thinking": chunk.reasoning} if chunk.reasoning else {})


def joined_generate(lines: list[Line]) -> Line:
    """The lines of an answer as one object."""
    if "response" not in lines[-1]:
        return lines[-1]
    answer = {**lines[-1], "response": joined_field(lines, "response")}
    thinking, logprobs = joined_field(lines, "thinking"), joined_list(lines, "logprobs")
    answer |= {"thinking": thinking} if thinking else {}
    return answer | ({"logprobs": logprobs} if logprobs else {})
