"""The common part of requests to /api/generate and /api/chat: the model, its options, and their chunks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.errors import ChatError, ContextOverflowError
from ollama_engine.server.durations import keep_alive, timestamp
from ollama_engine.server.errors import TOO_LONG, ApiError
from ollama_engine.server.ollama.ndjson import Line
from ollama_engine.server.request_log import note, note_names
from ollama_engine.server.requests.options import ModelOptions, read_options
from ollama_engine.server.requests.thinking import NO_REASONING
from ollama_engine.server.requests.unused_fields import unused_fields
from ollama_engine.store.showing import model_capabilities, short_facts

if TYPE_CHECKING:
    from fastapi import Request

    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.sample import SamplingParams
    from ollama_engine.segments import Segment
    from ollama_engine.server.ollama.schemas import ModelRequest, TextRequest
    from ollama_engine.server.served import ServedModel
    from ollama_engine.server.service import Service
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["OllamaCall", "chat_chunks", "debug_line", "head_of", "load_only", "long_prompts_refused", "read_call",
           "read_text_call", "request_options", "sampling", "template_options"]  # fmt: skip

MOST_TOP_LOGPROBS = 20


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


async def read_call(service: Service, body: ModelRequest, request: Request) -> OllamaCall:
    """The call in a request. Raises ApiError and ModelNotFoundError.

    A thread looks the model up: that reads files.
    """
    started = time.perf_counter()
    note(request, model=body.model)
    if not body.model.strip():
        raise ApiError(400, "model is required")
    stored = await asyncio.to_thread(service.library.find, body.model)
    options = read_options(stored.parameters, body.options)
    facts = await asyncio.to_thread(short_facts, stored)
    clamped = options.clamped(None if facts is None else facts.context_length)
    note_names(request, ignored=[*unused_fields(body), *options.ignored], clamped=clamped)
    return OllamaCall(body.model, stored, options, keep_alive(body.keep_alive), started, partial(note, request))


async def read_text_call(service: Service, body: TextRequest, verb: str, request: Request) -> OllamaCall:
    """`read_call`, for a model that can answer. Raises ApiError as well where it cannot, or not reason."""
    call = await read_call(service, body, request)
    if not await asyncio.to_thread(can_answer, call.stored):
        raise ApiError(400, f'"{call.name}" does not support {verb}')
    if body.top_logprobs is not None and not 0 <= body.top_logprobs <= MOST_TOP_LOGPROBS:
        raise ApiError(400, f"top_logprobs must be between 0 and {MOST_TOP_LOGPROBS}")
    return call


def can_answer(stored: StoredModel) -> bool:
    """Whether a model completes texts; True for a broken one, whose load says more. Compiles its template once."""
    facts = short_facts(stored)
    return facts is None or "completion" in model_capabilities(stored, facts)


def sampling(call: OllamaCall, request: TextRequest, model: ServedModel) -> SamplingParams:
    """How tokens are chosen. Raises ConfigError."""
    top = request.top_logprobs or 0
    return call.options.params(model.facts.num_ctx, top if request.logprobs else None)


def request_options(call: OllamaCall, request: TextRequest, model: ServedModel) -> dict[str, Any]:
    """The engine's options of a request: the form of the answer, and what happens where the context is full."""
    options: dict[str, Any] = {"format": request.format} if request.format else {}
    if not call.options.drafts:
        options["draft"] = "off"
    if request.shift is not False:
        options["on_overflow"] = "shift"
    elif request.truncate is not False:
        options["on_overflow"] = "truncate"
    if request.truncate is False:
        options["truncate_prompt"] = False
    if "on_overflow" in options:
        options["num_keep"] = min(call.options.num_keep, model.facts.num_ctx // 2)
        if options["num_keep"] < call.options.num_keep:
            call.note(num_keep=options["num_keep"])
    return options


@contextmanager
def long_prompts_refused(request: TextRequest) -> Iterator[None]:
    """A prompt that does not fit, and may not be cut, is refused in Ollama's words."""
    try:
        yield
    except ContextOverflowError as error:
        raise ApiError(400, TOO_LONG) if request.truncate is False else error from None


async def template_options(think: object, template: str = "", **others: Any) -> dict[str, Any]:
    """Options of all that applies a template, those that are given. Raises ChatError for what is no template."""
    ways = NO_REASONING if think is False else "high" if think == "max" else think
    compiled = await asyncio.to_thread(GoTemplate, template) if template else None
    given = {"think": ways, "template": compiled, **others}
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
    try:
        async with aclosing(model.chat(messages, params, **options)) as stream:
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


def head_of(call: OllamaCall) -> Line:
    """The fields that every line begins with."""
    return {"model": call.name, "created_at": timestamp()}
