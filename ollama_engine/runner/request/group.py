"""RequestGroup: requests of one call, for a caller who wants all of their answers or none."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from ollama_engine.runner.request.channel import CancelFlag, Event, RequestChannel
from ollama_engine.runner.request.results import Chunk, Completion, collect

__all__ = ["Numbered", "RequestGroup"]

Numbered = tuple[int, Event]
"""An event, and the number of its request."""


class _Member:
    """The mailbox of one request: its events go to where those of all come together."""

    def __init__(self, number: int, put: Callable[[Numbered], None]) -> None:
        self._number = number
        self._put = put

    def put(self, event: Event) -> None:
        """Called from the engine's thread."""
        self._put((self._number, event))


class RequestGroup:
    """Requests that `call` cancels together, and that end when nobody has this any more.

    `put` is where their events go; `completions` gets them from there.
    """

    def __init__(self, put: Callable[[Numbered], None]) -> None:
        self.call = CancelFlag()
        self._put = put
        self._chunks: list[list[Chunk]] = []

    def channel(self) -> RequestChannel:
        """Adds a channel, for one more request to be handed in."""
        made = RequestChannel(_Member(len(self._chunks), self._put), self.call)
        made.watch(self)
        self._chunks.append([])
        return made

    def completions(self, get: Callable[[], Numbered]) -> list[Completion]:
        """All of them, in the order of `channel`. Raises what ends the first that fails, at once."""
        missing = len(self._chunks)
        while missing:
            missing -= self._take(*get())
        return list(map(collect, self._chunks))

    async def acompletions(self, get: Callable[[], Awaitable[Numbered]]) -> list[Completion]:
        """`completions` for asyncio."""
        missing = len(self._chunks)
        while missing:
            missing -= self._take(*await get())
        return list(map(collect, self._chunks))

    def _take(self, number: int, event: Event) -> bool:
        """Whether the event is the last of its request."""
        if isinstance(event, Chunk):
            self._chunks[number].append(event)
            return event.finish_reason is not None
        assert isinstance(event, BaseException), "a generation has chunks"
        try:
            raise event
        finally:
            del event  # which would hold this frame
