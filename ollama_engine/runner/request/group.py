"""RequestGroup: requests of one call, for a caller who wants all of their answers or none."""

from __future__ import annotations

from queue import SimpleQueue

from ollama_engine.runner.request.request import Chunk, Completion, Event, RequestChannel, collect

__all__ = ["GroupMember", "RequestGroup"]


class GroupMember:
    """One of the requests: its events go to where those of all come together."""

    def __init__(self, number: int, events: SimpleQueue[tuple[int, Event]]) -> None:
        self._number = number
        self._events = events
        self.channel = RequestChannel(self)

    def put(self, event: Event) -> None:
        """Called from the engine's thread."""
        self._events.put((self._number, event))


class RequestGroup:
    """Requests that end together when one fails, or when nobody has this any more."""

    def __init__(self) -> None:
        self._events: SimpleQueue[tuple[int, Event]] = SimpleQueue()
        self._members: list[GroupMember] = []

    def member(self) -> GroupMember:
        """One more, to be handed in."""
        made = GroupMember(len(self._members), self._events)
        made.channel.watch(self)
        self._members.append(made)
        return made

    def completions(self) -> list[Completion]:
        """All of them, in the order of `member`. Raises what ends the first that fails, at once."""
        chunks: list[list[Chunk]] = [[] for _ in self._members]
        try:
            missing = len(chunks)
            while missing:
                missing -= self._take(chunks)
            return [collect(those) for those in chunks]
        finally:
            for one in self._members:
                one.channel.cancelled = True

    def _take(self, chunks: list[list[Chunk]]) -> bool:
        """Whether the event that came next is the last of its request."""
        number, event = self._events.get()
        if isinstance(event, Chunk):
            chunks[number].append(event)
            return event.finish_reason is not None
        try:
            raise event
        finally:
            del event  # which would hold this frame
