"""The lines of an answer of /api/generate and /api/chat: pieces as they come, then the counts."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ollama_engine.server.durations import nanoseconds
from ollama_engine.server.ollama.answers import OllamaCall, head_of
from ollama_engine.server.ollama.ndjson import Line

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.request.results import Usage
    from ollama_engine.sample import TokenLogprobs
    from ollama_engine.server.managing import ModelLease
    from ollama_engine.server.served import ServedModel

__all__ = ["PieceCounter", "answer_lines", "joined_field", "joined_list"]

REPEATS = 30
"""How often the same piece may follow itself: a model that writes it still again has lost its way."""


async def answer_lines(
    call: OllamaCall, lease: ModelLease, chunks: AsyncGenerator[ChatChunk, None], empty: Line,
    fields_of: Callable[[ChatChunk], Line],
) -> AsyncGenerator[Line, None]:  # fmt: skip
    """The lines of an answer, the last with the counts. Raises as `chunks`, which it closes.

    `fields_of` makes the fields of a chunk in the API's form, `empty` are those of a chunk without any text.
    Log-probabilities of text that is held back wait for it.
    """
    pieces = PieceCounter()
    waiting: list[TokenLogprobs] = []
    prompt: tuple[int, ...] = ()
    tokens: list[int] = []
    end: Line = {}
    async with aclosing(chunks):
        async for chunk in chunks:
            if chunk.dropped_messages:
                call.note(dropped_messages=chunk.dropped_messages)
            prompt = chunk.prompt_token_ids or prompt
            tokens += chunk.tokens
            waiting += chunk.logprobs or ()
            fields = fields_of(chunk)
            last = chunk.finish_reason is not None
            if fields != empty or (last and waiting):
                line = {**head_of(call), **fields, "done": False}
                if waiting:
                    line["logprobs"] = await logprob_entries(lease.model, waiting)
                    waiting = []
                yield line
            circles = bool(chunk.content) and pieces.too_often(chunk.content)
            if last or circles:
                reason = "length" if circles or chunk.finish_reason == "length" else "stop"
                end = end_of(call, lease, reason, chunk.usage, len(tokens))
                break
    # The ids of the prompt are there where the request asks the engine for them.
    context = {"context": [*prompt, *tokens]} if prompt else {}
    yield {**head_of(call), **empty, **end, **context}


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
