"""POST /api/generate."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ollama_engine.runner.chat.results import ChatChunk
from ollama_engine.segments import Text
from ollama_engine.server.errors import ApiError
from ollama_engine.server.ollama.answers import (
    Asked,
    PieceCounter,
    answer_format,
    asked_for,
    chat_chunks,
    end_of,
    head_of,
    image_files,
    joined_field,
    joined_list,
    load_only,
    logprob_entries,
    overflow,
    sampling,
)
from ollama_engine.server.ollama.ndjson import Line, respond
from ollama_engine.server.ollama.schemas import GenerateRequest
from ollama_engine.server.service import Service, service_of

if TYPE_CHECKING:
    from ollama_engine.runner.request.results import Chunk
    from ollama_engine.sample import TokenLogprobs
    from ollama_engine.segments import Segment
    from ollama_engine.server.scheduling import ModelLease
    from ollama_engine.server.served import AnswerStream, ServedModel

__all__ = ["router"]

router = APIRouter(tags=["ollama"])


@router.post("/api/generate")
async def generate(
    body: GenerateRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """The answer to a prompt; without a prompt, the model is loaded (or unloaded)."""
    asked = asked_for(service, body)
    if body.raw and (body.template or body.system or body.context):
        raise ApiError(400, "raw mode does not support template, system, or context")
    if not body.prompt and not body.images and not body.suffix:
        lines = load_only(service, asked, {**head_of(asked), "response": ""})
    else:
        lines = generate_lines(service, asked, body)
    return await respond(request, lines, joined_generate, stream=body.stream is not False)


async def generate_lines(service: Service, asked: Asked, body: GenerateRequest) -> AsyncGenerator[Line, None]:
    """The lines of an answer. Raises as the engine does."""
    async with service.scheduler.lease(asked.stored, asked.options.runner, asked.keep_alive) as lease:
        model = lease.model
        chunks = raw_chunks(asked, model, body) if body.raw else templated_chunks(asked, model, body)
        lines = GenerateLines(asked, lease)
        try:
            async for chunk in chunks:
                async for line in lines.of(chunk):
                    yield line
                if lines.ended:
                    break
        finally:
            await chunks.aclose()
        context = [] if body.raw else await prompt_ids(model, messages_of(asked, body))
        yield lines.last(context)


async def raw_chunks(asked: Asked, model: ServedModel, body: GenerateRequest) -> AsyncGenerator[ChatChunk, None]:
    """Chunks of the answer to a prompt as it is."""
    params = sampling(asked, body, model)
    options = overflow(asked, body, model) | answer_format(body)
    stream: AnswerStream[Chunk] = model.generate(body.prompt, params, images=image_files(body.images), **options)
    try:
        async for chunk in stream:
            yield ChatChunk(
                content=chunk.text, tokens=chunk.tokens, logprobs=chunk.logprobs, finish_reason=chunk.finish_reason,
                usage=chunk.usage,
            )  # fmt: skip
    finally:
        await stream.aclose()


def templated_chunks(asked: Asked, model: ServedModel, body: GenerateRequest) -> AsyncGenerator[ChatChunk, None]:
    """Chunks of the answer to a prompt as a conversation of one message."""
    options = overflow(asked, body, model) | answer_format(body)
    return chat_chunks(asked, model, messages_of(asked, body), sampling(asked, body, model), body.think, **options)


def messages_of(asked: Asked, body: GenerateRequest) -> list[dict[str, Any]]:
    """The conversation that a prompt stands for."""
    system = body.system or asked.stored.system
    found: list[dict[str, Any]] = [{"role": "system", "content": system}] if system else []
    if not body.context:
        found += [dict(message) for message in asked.stored.messages]
    message: dict[str, Any] = {"role": "user", "content": body.prompt}
    if body.images:
        message["images"] = image_files(body.images)
    return [*found, message]


async def prompt_ids(model: ServedModel, messages: list[dict[str, Any]]) -> list[int]:
    segments: list[Segment] = await model.apply_template(messages)
    return await model.tokenize("".join(part.text for part in segments if isinstance(part, Text)))


class GenerateLines:
    """Makes lines of chunks. Log-probabilities of text that is held back wait for it."""

    def __init__(self, asked: Asked, lease: ModelLease) -> None:
        self._asked = asked
        self._lease = lease
        self._pieces = PieceCounter()
        self._logprobs: list[TokenLogprobs] = []
        self._tokens: list[int] = []
        self._end: Line = {}
        self.ended = False

    async def of(self, chunk: ChatChunk) -> AsyncGenerator[Line, None]:
        """The line of a chunk, if it has any text."""
        self._tokens += chunk.tokens
        self._logprobs += chunk.logprobs or ()
        last = chunk.finish_reason is not None
        if chunk.content or chunk.reasoning or (last and self._logprobs):
            line: Line = {**head_of(self._asked), "response": chunk.content}
            if chunk.reasoning:
                line["thinking"] = chunk.reasoning
            line["done"] = False
            if self._logprobs:
                line["logprobs"] = await logprob_entries(self._lease.model, self._logprobs)
                self._logprobs = []
            yield line
        circles = bool(chunk.content) and self._pieces.too_often(chunk.content)
        if last or circles:
            self.ended = True
            reason = "length" if circles or chunk.finish_reason == "length" else "stop"
            self._end = end_of(self._asked, self._lease, reason, chunk.usage, len(self._tokens))

    def last(self, context: list[int]) -> Line:
        """The last line, with the ids of the prompt and the answer."""
        line = {**head_of(self._asked), "response": "", **self._end}
        return line | ({"context": [*context, *self._tokens]} if context else {})


def joined_generate(lines: list[Line]) -> Line:
    """The lines of an answer as one object."""
    found = {**lines[-1], "response": joined_field(lines, "response")}
    thinking, logprobs = joined_field(lines, "thinking"), joined_list(lines, "logprobs")
    found |= {"thinking": thinking} if thinking else {}
    return found | ({"logprobs": logprobs} if logprobs else {})
