"""What /api/generate and /api/chat have in common: the model, its options, and how an answer's lines end."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ollama_engine.errors import ChatError
from ollama_engine.server.durations import keep_alive, nanoseconds, timestamp
from ollama_engine.server.errors import ApiError
from ollama_engine.server.ollama.ndjson import Line
from ollama_engine.server.ollama.options import ModelOptions, read_options

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.request.results import Usage
    from ollama_engine.sample import SamplingParams, TokenLogprobs
    from ollama_engine.server.ollama.schemas import ModelRequest, TextRequest
    from ollama_engine.server.scheduling import ModelLease
    from ollama_engine.server.served import AnswerStream, ServedModel
    from ollama_engine.server.service import Service
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["Asked", "PieceCounter", "asked_for", "chat_chunks", "end_of", "image_files", "load_only", "logprob_entries",
           "overflow"]  # fmt: skip

MOST_TOP_LOGPROBS = 20
REPEATS = 30
"""How often the same piece may follow itself: a model that writes it still again has lost its way."""


@dataclass(frozen=True)
class Asked:
    """A request's model and options.

    Attributes:
        name: as the client wrote it.
        stored: the model.
        options: of the Modelfile and the request.
        keep_alive: seconds; see `KeepAlive`.
        started: when the request came, in seconds of `time.perf_counter`.
    """

    name: str
    stored: StoredModel
    options: ModelOptions
    keep_alive: float | None
    started: float


def asked_for(service: Service, request: ModelRequest) -> Asked:
    """Raises ApiError and ModelNotFoundError."""
    started = time.perf_counter()
    if not request.model.strip():
        raise ApiError(400, "model is required")
    stored = service.library.find(request.model)
    options = read_options(stored.parameters, request.options)
    return Asked(request.model, stored, options, keep_alive(request.keep_alive), started)


def sampling(asked: Asked, request: TextRequest, model: ServedModel) -> SamplingParams:
    """How tokens are chosen. Raises ApiError and ConfigError."""
    top = request.top_logprobs
    if top is not None and not 0 <= top <= MOST_TOP_LOGPROBS:
        raise ApiError(400, f"top_logprobs must be between 0 and {MOST_TOP_LOGPROBS}")
    return asked.options.params(model.facts.num_ctx, (top or 0) if request.logprobs else None)


def overflow(asked: Asked, request: TextRequest, model: ServedModel) -> dict[str, Any]:
    """Options of the engine's request: what happens where the context is full."""
    num_keep = min(asked.options.num_keep, model.facts.num_ctx // 2)
    if request.truncate is False:
        return {"on_overflow": "error"}
    return {"on_overflow": "truncate" if request.shift is False else "shift", "num_keep": num_keep}


def answer_format(request: TextRequest) -> dict[str, Any]:
    """The engine's option for the form of the answer."""
    return {"format": request.format} if request.format else {}


def image_files(images: Sequence[str] | None) -> list[bytes]:
    """The files of images that came in base64, with or without the head of a data URL. Raises ApiError."""
    found = []
    for number, text in enumerate(images or ()):
        body = text.partition(",")[2] if text.startswith("data:") else text
        try:
            found.append(base64.b64decode("".join(body.split()), validate=True))
        except (binascii.Error, ValueError):
            raise ApiError(400, f"images[{number}]: illegal base64 data") from None
    return found


async def load_only(service: Service, asked: Asked, line: Line) -> AsyncGenerator[Line, None]:
    """What a request without a prompt does: load the model, or unload it where it is kept for no time."""
    if asked.keep_alive == 0:
        await service.scheduler.unload(asked.stored)
        yield {**line, "done": True, "done_reason": "unload"}
        return
    async with service.scheduler.lease(asked.stored, asked.options.runner, asked.keep_alive):
        yield {**line, "done": True, "done_reason": "load"}


async def chat_chunks(
    asked: Asked, model: ServedModel, messages: Sequence[object], params: SamplingParams, think: object, **options: Any
) -> AsyncGenerator[ChatChunk, None]:
    """The chunks of a chat. Raises ApiError where the model cannot reason and is told to; as `ServedModel.chat`."""
    level = "high" if think == "max" else think
    stream: AnswerStream[ChatChunk] | None = None
    try:
        try:
            stream = model.chat(messages, params, think=level, **options)
            first = await anext(stream)
        except ChatError as error:
            if error.option != "think":
                raise
            if level is not False:
                raise ApiError(400, f'"{asked.name}" does not support thinking') from None
            # It always reasons; the reasoning comes apart from the answer.
            stream = model.chat(messages, params, **options)
            first = await anext(stream)
        yield first
        async for chunk in stream:
            yield chunk
    finally:
        if stream is not None:
            await stream.aclose()


class PieceCounter:
    """Counts how often a piece of text has followed itself."""

    def __init__(self) -> None:
        self._piece = ""
        self._times = 0

    def too_often(self, piece: str) -> bool:
        """Whether the answer goes round in a circle."""
        piece = piece.strip()
        self._times = self._times + 1 if piece == self._piece else 0
        self._piece = piece
        return self._times > REPEATS


async def logprob_entries(model: ServedModel, found: Sequence[TokenLogprobs]) -> list[Line]:
    """Log-probabilities of tokens, each with its text and bytes."""
    ids = [token for entry in found for token in (entry.token, *(token for token, _ in entry.top))]
    texts = iter(await model.token_bytes(ids))
    entries = []
    for entry in found:
        line = logprob_entry(next(texts), entry.logprob)
        if entry.top:
            line["top_logprobs"] = [logprob_entry(next(texts), logprob) for _, logprob in entry.top]
        entries.append(line)
    return entries


def logprob_entry(token: bytes, logprob: float) -> Line:
    # JSON has no infinity.
    return {"token": token.decode("utf-8", "replace"), "logprob": max(logprob, -1e38), "bytes": list(token)}


def end_of(asked: Asked, lease: ModelLease, reason: str, usage: Usage | None, n_tokens: int) -> Line:
    """The fields of a last line. Without usage, the answer was broken off behind `n_tokens`."""
    total = time.perf_counter() - asked.started
    end: Line = {
        "done": True,
        "done_reason": reason,
        "total_duration": nanoseconds(total),
        "load_duration": nanoseconds(lease.load_seconds),
    }
    if usage is None:
        return end | {"eval_count": n_tokens}
    return end | {
        "prompt_eval_count": usage.prompt_tokens - usage.dropped_prompt_tokens,
        "prompt_eval_duration": nanoseconds(usage.prompt_seconds),
        "eval_count": usage.completion_tokens,
        "eval_duration": nanoseconds(usage.completion_seconds),
    }


def head_of(asked: Asked) -> Line:
    """The fields that every line begins with."""
    return {"model": asked.name, "created_at": timestamp()}


def joined_field(lines: Sequence[Mapping[str, Any]], name: str) -> str:
    """A text, whose pieces stand in several lines."""
    return "".join(line.get(name, "") for line in lines)


def joined_list(lines: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """A list, whose parts stand in several lines."""
    return [entry for line in lines for entry in line.get(name, ())]
