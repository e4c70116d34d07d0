"""The common part of /api/generate and /api/chat: the model, its options, and how an answer's lines end."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.errors import ChatError
from ollama_engine.server.durations import keep_alive, nanoseconds, timestamp
from ollama_engine.server.errors import ApiError
from ollama_engine.server.ollama.ndjson import Line
from ollama_engine.server.request_log import note, note_names
from ollama_engine.server.requests.options import ModelOptions, read_options
from ollama_engine.server.requests.thinking import NO_REASONING, chat_thinking
from ollama_engine.server.requests.unused_fields import unused_fields
from ollama_engine.store.showing import model_capabilities, short_facts

if TYPE_CHECKING:
    from fastapi import Request

    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.request.results import Usage
    from ollama_engine.sample import SamplingParams, TokenLogprobs
    from ollama_engine.segments import Segment
    from ollama_engine.server.managing import ModelLease
    from ollama_engine.server.ollama.schemas import ModelRequest, TextRequest
    from ollama_engine.server.served import ServedModel
    from ollama_engine.server.service import Service
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["OllamaCall", "PieceCounter", "chat_chunks", "debug_line", "end_of", "head_of", "joined_field",
           "joined_list", "load_only", "logprob_entries", "read_call", "read_text_call", "request_options", "sampling",
           "template_options"]  # fmt: skip

MOST_TOP_LOGPROBS = 20
REPEATS = 30
"""How often the same piece may follow itself: a model that writes it still again has lost its way."""


@dataclass(frozen=True)
class OllamaCall:
    """A request's model and options.

    Attributes:
        name: as the client wrote it.
        stored: the model.
        options: of the Modelfile and the request.
        keep_alive: seconds; see `KeepAlive`.
        started: when the request came, in seconds of `time.perf_counter`.
        note: has the request's line in the log say more, see `request_log.note`.
    """

    name: str
    stored: StoredModel
    options: ModelOptions
    keep_alive: float | None
    started: float
    note: Callable[..., None]


def read_call(service: Service, body: ModelRequest, request: Request) -> OllamaCall:
    """The call in a request. Raises ApiError and ModelNotFoundError."""
    started = time.perf_counter()
    note(request, model=body.model)
    if not body.model.strip():
        raise ApiError(400, "model is required")
    stored = service.library.find(body.model)
    options = read_options(stored.parameters, body.options)
    note_names(request, ignored=[*unused_fields(body), *options.ignored], clamped=options.clamped)
    return OllamaCall(body.model, stored, options, keep_alive(body.keep_alive), started, partial(note, request))


def read_text_call(service: Service, body: TextRequest, verb: str, request: Request) -> OllamaCall:
    """`read_call`, for a model that can answer. Raises ApiError as well where it cannot, or not reason."""
    call = read_call(service, body, request)
    facts = short_facts(call.stored)
    known = {"completion", "thinking"} if facts is None else model_capabilities(call.stored, facts)
    if "completion" not in known:
        raise ApiError(400, f'"{call.name}" does not support {verb}')
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MOST_TOP_LOGPROBS:
        raise ApiError(400, f"top_logprobs must be between 0 and {MOST_TOP_LOGPROBS}")
    return call


def sampling(call: OllamaCall, request: TextRequest, model: ServedModel) -> SamplingParams:
    """How tokens are chosen. Raises ConfigError."""
    top = request.top_logprobs or 0
    return call.options.params(model.facts.num_ctx, top if request.logprobs else None)


def request_options(call: OllamaCall, request: TextRequest, model: ServedModel) -> dict[str, Any]:
    """The engine's options of a request: the form of the answer, and what happens where the context is full."""
    options: dict[str, Any] = {"format": request.format} if request.format else {}
    if request.shift is not False:
        options["on_overflow"] = "shift"
    elif request.truncate is not False:
        options["on_overflow"] = "truncate"
    if "on_overflow" in options:
        options["num_keep"] = min(call.options.num_keep, model.facts.num_ctx // 2)
        if options["num_keep"] < call.options.num_keep:
            call.note(num_keep=options["num_keep"])
    return options


def template_options(think: object, template: str = "", **others: Any) -> dict[str, Any]:
    """Options of all that applies a template, those that are given. Raises ChatError for what is no template."""
    level = "high" if think == "max" else think
    given = {"think": level, "template": GoTemplate(template) if template else None, **others}
    return {name: value for name, value in given.items() if value is not None}


async def load_only(service: Service, call: OllamaCall, line: Line) -> AsyncGenerator[Line, None]:
    """The line of a request without a prompt, which loads the model, or unloads it where it is kept for no time."""
    if call.keep_alive == 0:
        await service.manager.unload(call.stored)
        yield {**line, "done": True, "done_reason": "unload"}
        return
    async with service.manager.lease(call.stored, call.options.runner, call.keep_alive):
        yield {**line, "done": True, "done_reason": "load"}


async def chat_chunks(
    call: OllamaCall, model: ServedModel, messages: Sequence[object], params: SamplingParams,
    options: Mapping[str, Any],
) -> AsyncGenerator[ChatChunk, None]:  # fmt: skip
    """The chunks of a chat. Raises ApiError where the model cannot reason and is told to; as `ServedModel.chat`."""
    think = options.get("think")
    ways = NO_REASONING if think is False else (think,)
    rest = {name: value for name, value in options.items() if name != "think"}
    try:
        async with aclosing(chat_thinking(model, messages, params, ways, rest)) as stream:
            async for chunk in stream:
                yield chunk
    except ChatError as error:
        if error.option != "think":
            raise
        raise ApiError(400, f'"{call.name}" does not support thinking') from None


def debug_line(call: OllamaCall, segments: Sequence[Segment]) -> Line:
    """The prompt as it would be computed, which `_debug_render_only` asks for."""
    texts = [getattr(part, "text", None) for part in segments]
    numbers = iter(range(len(texts)))
    shown = "".join(f"[img-{next(numbers)}]" if text is None else text for text in texts)
    return {**head_of(call), "_debug_info": {"rendered_template": shown, "image_count": texts.count(None)}}


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


async def logprob_entries(model: ServedModel, logprobs: Sequence[TokenLogprobs]) -> list[Line]:
    """Log-probabilities of tokens, each with its text and bytes."""
    ids = [token for entry in logprobs for token in (entry.token, *(token for token, _ in entry.top))]
    texts = iter(await model.token_bytes(ids))
    entries = []
    for entry in logprobs:
        line = logprob_entry(next(texts), entry.logprob)
        if entry.top:
            line["top_logprobs"] = [logprob_entry(next(texts), logprob) for _, logprob in entry.top]
        entries.append(line)
    return entries


def logprob_entry(token: bytes, logprob: float) -> Line:
    # JSON has no infinity.
    return {"token": token.decode("utf-8", "replace"), "logprob": max(logprob, -1e38), "bytes": list(token)}


def head_of(call: OllamaCall) -> Line:
    """The fields that every line begins with."""
    return {"model": call.name, "created_at": timestamp()}


def end_of(call: OllamaCall, lease: ModelLease, reason: str, usage: Usage | None, n_tokens: int) -> Line:
    """The fields of a last line. Without usage, the answer was broken off behind `n_tokens`."""
    total = time.perf_counter() - call.started
    end: Line = {
        "done": True,
        "done_reason": reason,
        "total_duration": nanoseconds(total),
        "load_duration": nanoseconds(lease.load_seconds),
    }
    if usage is None:
        return end | {"eval_count": n_tokens}
    if usage.dropped_prompt_tokens or usage.shifted_tokens:
        call.note(dropped_tokens=usage.dropped_prompt_tokens + usage.shifted_tokens)
    return end | {
        "prompt_eval_count": usage.prompt_tokens - usage.dropped_prompt_tokens,
        "prompt_eval_duration": nanoseconds(usage.prompt_seconds),
        "eval_count": usage.completion_tokens,
        "eval_duration": nanoseconds(usage.completion_seconds),
    }


def joined_field(lines: Sequence[Mapping[str, Any]], name: str) -> str:
    """A text, whose pieces stand in several lines."""
    return "".join(line.get(name, "") for line in lines)


def joined_list(lines: Sequence[Mapping[str, Any]], name: str) -> list[Any]:
    """A list, whose parts stand in several lines."""
    return [entry for line in lines for entry in line.get(name, ())]
