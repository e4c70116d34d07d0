"""EmbeddingCall: a call for embeddings or scores as its caller makes it, by waiting in a thread or for asyncio."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from typing import Generic, TypeVar

from ollama_engine.errors import ClosedError
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.core.tasks import Update
from ollama_engine.runner.embed.batcher import TextBatcher
from ollama_engine.runner.embed.request import EmbeddingRequest, TokenizedText
from ollama_engine.runner.embed.results import Results
from ollama_engine.runner.request.channel import Event, RequestChannel, arun_or_cancel, result_of, run_or_cancel
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.tokenizer import Checkpoint

__all__ = ["EmbeddingCall", "Tokenize"]

Value = TypeVar("Value")

Tokenize = Callable[[Checkpoint], Iterator[TokenizedText]]
"""Tokenizes the texts of a call, one after the other. An exception of the checkpoint ends that."""

PIECES = (1, 16)
"""Sizes in batches: a call's first piece, which starts soon; and the largest later one, so that few are handed in."""


@dataclass(frozen=True, eq=False)
class EmbeddingCall(Generic[Value]):
    """Texts to embed. `wait` or `coming` hands them in; the call takes no place in the queue before."""

    texts: Tokenize
    n_texts: int
    results: Results[Value]
    """Its value is what the caller gets."""
    options: RequestOptions
    name: str | None
    """The caller's name for the texts, for errors; None for a single one."""
    short: bool
    """Whether the texts may be tokenized on an event loop."""
    thread: EngineThread
    batcher: TextBatcher
    batch_size: int

    def wait(self) -> Value:
        """Hand it in and wait for its value. Raises what went wrong."""
        if not self.n_texts:
            return self.results.value()
        events: SimpleQueue[Event] = SimpleQueue()
        channel = RequestChannel(events)

        def embed() -> Value:
            self._feed(self._start(channel))
            value: Value = result_of(events.get())
            return value

        return run_or_cancel(channel, embed)

    async def coming(self) -> Value:
        """`wait` for asyncio; cancelling the task cancels it."""
        if not self.n_texts:
            return self.results.value()
        from ollama_engine.runner.request.astream import AsyncMailbox  # noqa: PLC0415 (asyncio, for who uses it)

        events: AsyncMailbox[Event] = AsyncMailbox()
        channel = RequestChannel(events)

        async def embed() -> Value:
            request = self._start(channel)
            if self.short:
                self._feed(request)
            else:
                threading.Thread(target=self._feed, args=(request,), name="ollama_engine texts", daemon=True).start()
            value: Value = result_of(await events.get())
            return value

        return await arun_or_cancel(channel, embed)

    def _start(self, channel: RequestChannel) -> EmbeddingRequest:
        """Take a place in the queue. Raises as `EngineThread.submit`."""
        request = EmbeddingRequest(
            channel=channel, options=self.options, submitted_at=self.thread.monitor.clock(), batcher=self.batcher,
            results=self.results, missing=self.n_texts, name=self.name,
        )  # fmt: skip
        self.thread.submit(request)
        return request

    def _check(self, request: EmbeddingRequest) -> None:
        """Raise ClosedError where nobody waits any more: the call has ended, also by its timeout, or was cancelled."""
        if request.channel.unwanted or request.channel.ended:
            raise ClosedError("the call has ended before its texts were tokenized")

    def _feed(self, request: EmbeddingRequest) -> None:
        """Tokenize texts and hand them in, in pieces, until the request has ended. A bad text ends it."""
        room, largest = (batches * self.batch_size for batches in PIECES)
        piece: list[TokenizedText] = []
        waiting = 0
        try:
            for text in self.texts(partial(self._check, request)):
                piece.append(text)
                waiting += len(text.tokens)
                if request.channel.unwanted or request.channel.ended:
                    return
                if waiting >= room:
                    self._add(request, piece)
                    piece, waiting, room = [], 0, min(2 * room, largest)
            self._add(request, piece)
        except Exception as error:
            self._end(request, error)

    def _add(self, request: EmbeddingRequest, texts: list[TokenizedText]) -> None:
        self.thread.post(Update(lambda core: request.add(texts)))

    def _end(self, request: EmbeddingRequest, error: Exception) -> None:
        self.thread.post(Update(lambda core: core.queue.end(request, error)))
