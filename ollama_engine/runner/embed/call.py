"""EmbeddingCall: the vectors, or the ranks, of texts and images."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty
from typing import TypeVar

from ollama_engine.errors import ClosedError
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.core.tasks import Update
from ollama_engine.runner.embed.batcher import TextBatcher
from ollama_engine.runner.embed.request import EmbeddingRequest
from ollama_engine.runner.embed.results import Results
from ollama_engine.runner.embed.tokenized_text import TokenizedText
from ollama_engine.runner.request.call import EngineCall
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.tokenizer import Checkpoint

__all__ = ["EmbeddingCall", "Tokenize"]

Value = TypeVar("Value")

Tokenize = Callable[[Checkpoint], Iterator[TokenizedText]]
"""Tokenizes the texts of a call, one after the other. An exception of the checkpoint ends that."""

PIECES = (1, 16)
"""Sizes in batches: a call's first piece, which starts soon; and the largest later one, so that few are handed in."""

AHEAD = 4
"""Texts with images of a call that are prepared and not computed yet, at most."""

PATIENCE = 0.1
"""Interval in seconds at which a caller looks whether its call has ended."""


@dataclass(eq=False)
class EmbeddingCall(EngineCall[Value]):
    """Texts to embed. The call takes its place in the queue first, then hands in texts while others are computed."""

    texts: Tokenize
    n_texts: int
    results: Results[Value]
    """Its value is what the caller gets."""
    options: RequestOptions
    name: str | None
    """The caller's name for the texts, for errors; None for a single one."""
    are_long: bool
    """Whether no event loop should tokenize the texts."""
    thread: EngineThread
    batcher: TextBatcher
    batch_size: int

    def __post_init__(self) -> None:
        super().__init__()
        self._request: EmbeddingRequest | None = None

    @property
    def feeds_long(self) -> bool:
        return self.are_long

    def hand_in(self) -> None:
        if not self.n_texts:
            return
        self._request = EmbeddingRequest(
            channel=self.channel(), options=self.options, submitted_at=self.thread.monitor.clock(),
            batcher=self.batcher, results=self.results, missing=self.n_texts, name=self.name,
        )  # fmt: skip
        self.thread.submit(self._request)

    def feed(self) -> None:
        """Tokenize texts and hand them in, in pieces, until the request has ended. A bad text ends it."""
        if self._request is None:
            return
        request, (room, largest) = self._request, (batches * self.batch_size for batches in PIECES)
        piece: list[TokenizedText] = []
        waiting = n_images = 0
        try:
            for text in self.texts(partial(self._check, request)):
                piece.append(text)
                waiting += len(text.tokens)
                if request.channel.unwanted or request.channel.ended:
                    return
                n_images += bool(text.images)
                if waiting >= room or text.images:
                    self._add(request, piece)
                    piece, waiting, room = [], 0, min(2 * room, largest)
                if text.images and n_images >= AHEAD and not _moves_on(request):
                    return
            self._add(request, piece)
        except Exception as error:
            self._end(request, error)

    def value(self) -> Value:
        return self.results.value()

    def _check(self, request: EmbeddingRequest) -> None:
        """Raise ClosedError where no caller waits any more: the call has ended or was cancelled."""
        if request.channel.unwanted or request.channel.ended:
            raise ClosedError("the call has ended before its texts were tokenized")

    def _add(self, request: EmbeddingRequest, texts: list[TokenizedText]) -> None:
        self.thread.post(Update(lambda core: request.add(texts)))

    def _end(self, request: EmbeddingRequest, error: Exception) -> None:
        self.thread.post(Update(lambda core: core.queue.end(request, error)))


def _moves_on(request: EmbeddingRequest) -> bool:
    """Wait until one more text with images is computed; False when the request has ended."""
    while not request.channel.unwanted and not request.channel.ended:
        with suppress(Empty):
            request.moved_on.get(timeout=PATIENCE)
            return True
    return False
