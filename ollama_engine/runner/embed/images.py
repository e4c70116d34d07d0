"""Images that are only encoded: calls for the rows that a vision tower makes of them.

One image is encoded between two steps, in turn with texts to embed and with the images of prompts, whose encoder cache
these share. Callers' threads read and prepare, a few images ahead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import ClassVar

import numpy as np

from ollama_engine.errors import EngineError
from ollama_engine.input import FloatArray, MediaItem
from ollama_engine.multimodal.source import image_bytes
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.core.tasks import Update
from ollama_engine.runner.embed.pooling import finish
from ollama_engine.runner.media.image_reader import ImageReader
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.call import EngineCall
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.prompts import numbered
from ollama_engine.runner.request.results import Result
from ollama_engine.runner.schedule.queued import BatchedRequest, Kind, Progress
from ollama_engine.segments import ImageSource

__all__ = ["ImageBatcher", "ImageCall"]

AHEAD = 4
"""Images of a call that are prepared and not encoded yet, at most."""

PATIENCE = 0.1
"""Interval in seconds at which a caller looks whether its call has ended."""


@dataclass(slots=True, eq=False, kw_only=True)
class ImageRequest(BatchedRequest):
    """The images of one call."""

    kind: ClassVar[Kind] = "embedding"

    missing: int
    pending: deque[MediaItem] = field(default_factory=deque)
    encoded: list[FloatArray] = field(default_factory=list)
    moved_on: SimpleQueue[None] = field(default_factory=SimpleQueue)
    """Gets an entry for each image that was encoded."""

    @property
    def idle(self) -> bool:
        """Whether no image waits, or the call was cancelled."""
        return not self.pending or self.channel.unwanted

    def progress(self) -> Progress:
        return Progress("batches" if self.started_at else "waiting", 0, 0)


class ImageBatcher:
    """Encodes one image at a time. The engine's thread owns it."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor
        self._batches = 0

    def run(self, turns: Sequence[ImageRequest]) -> list[tuple[BatchedRequest, Result | BaseException]]:
        """See Batcher."""
        request, begin = turns[0], self._monitor.clock()
        self._batches += 1
        request.last_batch = self._batches
        if not request.started_at:
            request.started_at = begin
            self._monitor.started(request, begin)
        item = request.pending.popleft()
        known = item.ready()
        try:
            request.encoded.append(item.embeddings())
        except Exception as error:
            return [(request, error)]
        if known:
            self._monitor.image_hit()
        else:
            self._monitor.encoded(self._batches, begin)
        request.moved_on.put(None)
        return [(request, Result(None))] if len(request.encoded) == request.missing else []


@dataclass(eq=False)
class ImageCall(EngineCall[list[FloatArray]]):
    """Images to encode: float32 [rows, n] for each, in their order.

    Raises ImageError, for an image of a list with its number; what the model raises; EngineBusyError, DeadlineError,
    ClosedError.
    """

    files: Sequence[ImageSource]
    reader: ImageReader
    options: RequestOptions
    thread: EngineThread
    batcher: ImageBatcher
    name: str | None = None
    """The caller's name for the images, for errors; None for a single one."""

    def __post_init__(self) -> None:
        super().__init__()
        self._request: ImageRequest | None = None

    @property
    def feeds_long(self) -> bool:
        return True

    def hand_in(self) -> None:
        if not self.files:
            return
        self._request = ImageRequest(
            channel=self.channel(), options=self.options, submitted_at=self.thread.monitor.clock(),
            batcher=self.batcher, missing=len(self.files),
        )  # fmt: skip
        self.thread.submit(self._request)

    def feed(self) -> None:
        """Prepare images and hand them in, until the request has ended. A bad image ends it."""
        if self._request is None:
            return
        request = self._request
        for number, data in enumerate(self.files):
            if number >= AHEAD and not _moves_on(request):
                return
            try:
                items = [self.reader.item(image_bytes(data))]
            except Exception as error:
                about = numbered(error, self.name, number) if self.name and isinstance(error, EngineError) else error
                self._end(request, about)
                return
            self._add(request, items)

    def value(self) -> list[FloatArray]:
        return [] if self._request is None else self._request.encoded

    def finished(self, rows: Sequence[FloatArray], dim: int, *, normalize: bool) -> FloatArray:
        """Vectors of images that have one row each: float32 [n, dim]; [dim] of a single image."""
        if not rows:
            return np.empty((0, dim), np.float32)
        vectors = finish(np.concatenate(rows), dim, normalize=normalize)
        return vectors if self.name else vectors[0]

    def _add(self, request: ImageRequest, items: Iterable[MediaItem]) -> None:
        self.thread.post(Update(lambda core: request.pending.extend(items)))

    def _end(self, request: ImageRequest, error: Exception) -> None:
        self.thread.post(Update(lambda core: core.queue.end(request, error)))


def _moves_on(request: ImageRequest) -> bool:
    """Wait until one more image is encoded; False when the request has ended."""
    while not request.channel.unwanted and not request.channel.ended:
        with suppress(Empty):
            request.moved_on.get(timeout=PATIENCE)
            return True
    return False
