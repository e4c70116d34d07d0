"""Images that are only encoded: calls for the rows that a vision tower makes of them.

One image is encoded between two steps, in turn with texts to embed and with the images of prompts, whose encoder cache
these share. Callers' threads read and prepare, a few images ahead.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import ClassVar

from ollama_engine.errors import EngineError
from ollama_engine.input import FloatArray, MediaItem
from ollama_engine.multimodal.source import image_bytes
from ollama_engine.runner.core.engine_thread import EngineThread
from ollama_engine.runner.core.tasks import Update
from ollama_engine.runner.media.image_reader import ImageReader
from ollama_engine.runner.observe.monitor import Monitor
from ollama_engine.runner.request.channel import Event, RequestChannel, arun_or_cancel, result_of, run_or_cancel
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
        return [(request, Result(request.encoded))] if len(request.encoded) == request.missing else []


@dataclass(frozen=True, eq=False)
class ImageCall:
    """Images to encode. `wait` or `coming` hands them in: float32 [rows, n] for each, in their order.

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

    def wait(self) -> list[FloatArray]:
        """The rows of each image, for a thread."""
        if not self.files:
            return []
        events: SimpleQueue[Event] = SimpleQueue()
        channel = RequestChannel(events)

        def encode() -> list[FloatArray]:
            self._feed(self._start(channel))
            found: list[FloatArray] = result_of(events.get())
            return found

        return run_or_cancel(channel, encode)

    async def coming(self) -> list[FloatArray]:
        """`wait` for asyncio; cancelling the task cancels it. Images are read and prepared in a thread."""
        if not self.files:
            return []
        from ollama_engine.runner.request.astream import AsyncMailbox  # noqa: PLC0415 (asyncio, for who uses it)

        events: AsyncMailbox[Event] = AsyncMailbox()
        channel = RequestChannel(events)

        async def encode() -> list[FloatArray]:
            request = self._start(channel)
            threading.Thread(target=self._feed, args=(request,), name="ollama_engine images", daemon=True).start()
            found: list[FloatArray] = result_of(await events.get())
            return found

        return await arun_or_cancel(channel, encode)

    def _start(self, channel: RequestChannel) -> ImageRequest:
        """Take a place in the queue. Raises as `EngineThread.submit`."""
        request = ImageRequest(
            channel=channel, options=self.options, submitted_at=self.thread.monitor.clock(), batcher=self.batcher,
            missing=len(self.files),
        )  # fmt: skip
        self.thread.submit(request)
        return request

    def _feed(self, request: ImageRequest) -> None:
        """Prepare images and hand them in, until the request has ended. A bad image ends it."""
        for number, data in enumerate(self.files):
            if number >= AHEAD and not _moves_on(request):
                return
            try:
                items = [self.reader.item(image_bytes(data))]
            except Exception as error:
                told = numbered(error, self.name, number) if self.name and isinstance(error, EngineError) else error
                self._end(request, told)
                return
            self._add(request, items)

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
