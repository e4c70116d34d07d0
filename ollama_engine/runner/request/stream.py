"""Stream: chunks of one request for a caller who may lose interest: closing or dropping it cancels the request."""

from __future__ import annotations

from collections.abc import Iterator

from ollama_engine.closing import Closing
from ollama_engine.runner.request.request import Request
from ollama_engine.runner.request.results import Chunk

__all__ = ["Stream"]


class Stream(Iterator[Chunk], Closing):
    """The chunks of one request, as they come. Closing or dropping it cancels the request at its next step.

    `next` raises what ended the request early. Several threads may take from one stream; each chunk goes to one.
    """

    def __init__(self, request: Request) -> None:
        self._request = request
        request.channel.watch(self)
        self._closed = False

    def __next__(self) -> Chunk:
        if self._closed:
            raise StopIteration
        try:
            chunk = next(self._request)
        except Exception:
            if self._closed:  # another thread closed the stream while this one waited
                raise StopIteration from None
            raise
        if self._closed:
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Cancel the request if it has not ended; there are no further chunks. Safe to call twice."""
        self._closed = True
        self._request.cancel()

    def __repr__(self) -> str:
        return f"Stream({'closed' if self._closed else 'open'}, of {self._request!r})"
