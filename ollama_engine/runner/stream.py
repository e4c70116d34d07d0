"""Stream: the caller's end of a request, from which chunks are taken."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType

from ollama_engine.runner.request import Chunk, Request

__all__ = ["Stream"]


class Stream(Iterator[Chunk]):
    """The chunks of one request, as they come. Closing or dropping it cancels the request at its next step.

    `next` raises what ended the request early. Several threads may take from one stream; each chunk goes to one.
    `engine` is kept alive until the stream is gone.
    """

    def __init__(self, request: Request, engine: object) -> None:
        self._request = request
        self._engine = engine
        self._lock = threading.Lock()
        self._ended = False

    def __next__(self) -> Chunk:
        with self._lock:
            if self._ended:
                raise StopIteration
            try:
                event = self._request.events.get()
            except BaseException:  # KeyboardInterrupt
                self.close()
                raise
            if self._ended:  # another thread closed the stream while this one waited
                raise StopIteration
            self._ended = not isinstance(event, Chunk) or event.finish_reason is not None
            if isinstance(event, Chunk):
                return event
            try:
                raise event
            finally:
                del event  # which would hold this frame, and by it the engine

    def close(self) -> None:
        """Cancel the request if it has not ended; there are no further chunks. Safe to call twice."""
        self._ended = True
        self._request.cancelled = True

    def __enter__(self) -> Stream:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
