"""TextBatcher: computes the texts of all callers in batches. The engine thread owns it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Sequence
from itertools import groupby, islice

from ollama_engine.errors import ComputeError, EngineError, NoMemoryError, Option
from ollama_engine.input import MediaItem
from ollama_engine.runner.embed.embedder import Embedder
from ollama_engine.runner.embed.pooling import FloatArray
from ollama_engine.runner.embed.request import EmbeddingRequest
from ollama_engine.runner.embed.tokenized_text import TokenizedText
from ollama_engine.runner.observe.monitor import Monitor, report
from ollama_engine.runner.request.prompts import numbered
from ollama_engine.runner.request.results import Result
from ollama_engine.runner.schedule.queued import BatchedRequest

__all__ = ["TextBatcher"]

log = logging.getLogger(__name__)

MAX_TEXTS = 64
"""Most texts of a batch, so that a batch delays running answers little."""

Part = tuple[int, TokenizedText]


class TextBatcher:
    """Computes batches of up to `batch_size` tokens, or a single longer text."""

    def __init__(self, embedder: Embedder, batch_size: int, monitor: Monitor) -> None:
        self._embedder = embedder
        self._batch_size = batch_size
        self._monitor = monitor
        self._batches = 0

    def run(self, turns: Sequence[EmbeddingRequest]) -> list[tuple[BatchedRequest, Result | BaseException]]:
        """See Batcher. Calls of one priority give a text in turn, so that a short call does not wait for a long one."""
        self._batches += 1
        begin = self._monitor.clock()
        image = turns[0].image_to_encode()
        if image is not None:
            return self._encode(turns[0], image, begin)
        taken = self._take(turns, begin)
        texts = [text for parts in taken.values() for _, text in parts]
        try:
            vectors = iter(self._embedder.compute(texts))
        except Exception as error:
            told = _told(error)
            return [(request, told) for request in taken]
        self._monitor.embedded(self._batches, [text.tokens for text in texts if len(text.tokens)], begin)
        ended: list[tuple[BatchedRequest, Result | BaseException]] = []
        for request, parts in taken.items():
            event = _give(request, parts, list(islice(vectors, len(parts))))
            if event is not None:
                ended.append((request, event))
        return ended

    def _encode(
        self, request: EmbeddingRequest, image: MediaItem, begin: float
    ) -> list[tuple[BatchedRequest, Result | BaseException]]:
        """One image alone, so that running answers wait no longer."""
        self._begin(request, begin)
        try:
            request.encoded[image.hash] = image.embeddings()
        except Exception as error:
            told = _told(error)
            if request.name is not None and isinstance(told, EngineError):
                told = numbered(told, request.name, request.pending[0][0])
            return [(request, told)]
        self._monitor.encoded(self._batches, begin)
        return []

    def _take(self, turns: Sequence[EmbeddingRequest], now: float) -> dict[EmbeddingRequest, list[Part]]:
        """The texts of the next batch, by request."""
        taken: dict[EmbeddingRequest, list[Part]] = {}
        room = self._batch_size
        for count, request in enumerate(_in_turn(turns)):
            n = len(request.pending[0][1].tokens)
            if count == MAX_TEXTS or (count and n > room):
                break
            room -= n
            if request not in taken:
                self._begin(request, now)
            for image in request.pending[0][1].images:
                if image.hash not in request.encoded:
                    self._monitor.image_hit()
            taken.setdefault(request, []).append(request.pending.popleft())
        return taken

    def _begin(self, request: EmbeddingRequest, now: float) -> None:
        if not request.started_at:
            request.started_at = now
            self._monitor.started(request, now)
        request.last_batch = self._batches


def _in_turn(turns: Sequence[EmbeddingRequest]) -> Iterable[EmbeddingRequest]:
    """Requests in the order in which they give texts: the first once, then by priority, one text of each in turn."""
    first, *others = turns
    yield first
    for _, alike in groupby(sorted([*others, first], key=_rank), key=_rank):
        ready = deque(alike)
        while ready:
            request = ready.popleft()
            if request.pending and request.image_to_encode() is None:
                yield request
                ready.append(request)


def _rank(request: EmbeddingRequest) -> int:
    return -request.options.priority


def _give(
    request: EmbeddingRequest, parts: Sequence[Part], vectors: Sequence[FloatArray | EngineError]
) -> Result | BaseException | None:
    """Hand it what came of these parts; what it ends with, if it does."""
    try:
        return request.give(parts, vectors)
    except Exception as error:
        return _told(error)


def _told(error: Exception) -> Exception:
    """The error that callers get for a batch that could not be computed."""
    if type(error) is MemoryError:
        return NoMemoryError(
            "there is no memory left to embed these texts",
            advice=["give shorter ones", ("lower ", Option("batch_size"))],
        )
    if isinstance(error, EngineError):
        return error
    report(log, logging.ERROR, "a batch of texts failed: %r", error, exc_info=log.isEnabledFor(logging.DEBUG))
    told = ComputeError(f"the texts could not be embedded, for a fault of the engine: {error!r}")
    told.__cause__ = error
    return told
