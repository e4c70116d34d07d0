"""POST /api/chat."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ollama_engine.chat.events import ToolCallEnd
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
from ollama_engine.server.ollama.schemas import ChatMessage, ChatRequest
from ollama_engine.server.service import Service, service_of

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.sample import TokenLogprobs
    from ollama_engine.server.scheduling import ModelLease
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["router"]

router = APIRouter(tags=["ollama"])


@router.post("/api/chat")
async def chat(body: ChatRequest, request: Request, service: Annotated[Service, Depends(service_of)]) -> Response:
    """The assistant's answer to a conversation; without messages, the model is loaded (or unloaded)."""
    asked = asked_for(service, body)
    if not body.messages:
        lines = load_only(service, asked, {**head_of(asked), "message": {"role": "assistant", "content": ""}})
    else:
        lines = chat_lines(service, asked, body)
    return await respond(request, lines, joined_chat, stream=body.stream is not False)


async def chat_lines(service: Service, asked: Asked, body: ChatRequest) -> AsyncGenerator[Line, None]:
    """The lines of an answer. Raises as the engine does."""
    messages = conversation(asked.stored, body.messages)
    async with service.scheduler.lease(asked.stored, asked.options.runner, asked.keep_alive) as lease:
        model = lease.model
        params = sampling(asked, body, model)
        chunks = chat_chunks(
            asked, model, messages, params, body.think, tools=body.tools or None, **overflow(asked, body, model),
            **answer_format(body),
        )  # fmt: skip
        lines = ChatLines(asked, lease)
        try:
            async for chunk in chunks:
                async for line in lines.of(chunk):
                    yield line
                if lines.ended:
                    return
        finally:
            await chunks.aclose()


def conversation(stored: StoredModel, given: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """A request's messages behind those of the model's Modelfile, with its system message if they have none."""
    found = [dict(message) for message in stored.messages] + [as_message(message) for message in given]
    if stored.system and found[0]["role"] != "system":
        found.insert(0, {"role": "system", "content": stored.system})
    return found


def as_message(given: ChatMessage) -> dict[str, Any]:
    """The message in the engine's form. Texts never become paths. Raises ApiError for what is no base64."""
    message: dict[str, Any] = {"role": given.role, "content": given.content or ""}
    if given.images:
        message["images"] = image_files(given.images)
    if given.tool_calls:
        message["tool_calls"] = [
            {"id": call.id, "function": {"name": call.function.name, "arguments": call.function.arguments}}
            for call in given.tool_calls
        ]
    for name in ("thinking", "tool_name", "tool_call_id"):
        if getattr(given, name) is not None:
            message[name] = getattr(given, name)
    return message


class ChatLines:
    """Makes lines of chunks. Log-probabilities of text that is held back wait for it."""

    def __init__(self, asked: Asked, lease: ModelLease) -> None:
        self._asked = asked
        self._lease = lease
        self._pieces = PieceCounter()
        self._logprobs: list[TokenLogprobs] = []
        self._n_tokens = 0
        self.ended = False

    async def of(self, chunk: ChatChunk) -> AsyncGenerator[Line, None]:
        """The lines of a chunk: none, one, and the last one of the answer."""
        self._n_tokens += len(chunk.tokens)
        self._logprobs += chunk.logprobs or ()
        message: Line = {"role": "assistant", "content": chunk.content}
        if chunk.reasoning:
            message["thinking"] = chunk.reasoning
        calls = [tool_call(event) for event in chunk.tool_events if isinstance(event, ToolCallEnd)]
        if calls:
            message["tool_calls"] = calls
        last = chunk.finish_reason is not None
        if chunk.content or len(message) > 2 or (last and self._logprobs):
            line = {**head_of(self._asked), "message": message, "done": False}
            if self._logprobs:
                line["logprobs"] = await logprob_entries(self._lease.model, self._logprobs)
                self._logprobs = []
            yield line
        circles = bool(chunk.content) and self._pieces.too_often(chunk.content)
        if last or circles:
            self.ended = True
            reason = "length" if circles or chunk.finish_reason == "length" else "stop"
            end = end_of(self._asked, self._lease, reason, chunk.usage, self._n_tokens)
            yield {**head_of(self._asked), "message": {"role": "assistant", "content": ""}, **end}


def tool_call(event: ToolCallEnd) -> Line:
    """A call as Ollama's clients read it."""
    call = event.call
    return {"id": call.id, "function": {"index": event.index, "name": call.name, "arguments": call.arguments}}


def joined_chat(lines: list[Line]) -> Line:
    """The lines of an answer as one object."""
    message: Line = {"role": "assistant", "content": "".join(line["message"]["content"] for line in lines)}
    thinking = joined_field([line["message"] for line in lines], "thinking")
    calls = joined_list([line["message"] for line in lines], "tool_calls")
    message |= {"thinking": thinking} if thinking else {}
    message |= {"tool_calls": calls} if calls else {}
    logprobs = joined_list(lines, "logprobs")
    return {**lines[-1], "message": message} | ({"logprobs": logprobs} if logprobs else {})
