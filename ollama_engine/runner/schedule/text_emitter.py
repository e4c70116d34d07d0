"""TextEmitter: decides which text of a sequence may be delivered now, and where the text ends.

Pure: no model, no thread, no clock. Delivered text never has to be taken back: an incomplete UTF-8 sequence waits in
the detokenizer, and a suffix that may grow into a stop string waits here.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from ollama_engine.errors import ClosedError, ConfigError

__all__ = ["StreamingDetokenizer", "TextEmitter"]


class StreamingDetokenizer(Protocol):
    """Turns token ids into text, holding back incomplete UTF-8."""

    def push(self, token: int, /) -> str:
        """The text that this token completes."""

    def flush(self) -> str:
        """The text still held back, made printable."""


class TextEmitter:
    """The text of one sequence, token by token, up to the first stop string.

    The text ends before the stop string that is complete first, reading character by character; of several that end at
    the same character, before the longest. So the result depends on the text alone, not on how tokens cut it, and
    generation never has to go on past a complete stop string to learn what the text is.

    stop: texts that end the sequence, themselves not delivered; an empty one raises ConfigError.
    """

    def __init__(self, detokenizer: StreamingDetokenizer, stop: Iterable[str] = ()) -> None:
        self._detokenizer = detokenizer
        self._stops = tuple(stop)
        if not all(self._stops):
            raise ConfigError("stop must hold non-empty texts, got ''")
        self._longest = max(map(len, self._stops), default=0)
        self._first_characters = frozenset(stop[0] for stop in self._stops)
        self._held = ""
        self._closed = False
        self._stop: str | None = None

    @property
    def may_stop(self) -> bool:
        """Whether there are stop strings."""
        return bool(self._stops)

    @property
    def stop(self) -> str | None:
        """The stop string that ended the text, or None."""
        return self._stop

    @property
    def stopped(self) -> bool:
        """Whether a stop string ended the text; no further token is taken then."""
        return self._stop is not None

    def push(self, token: int) -> str:
        """Take the next token; returns the text that is now safe to deliver (often "").

        Raises ClosedError after a stop string or flush: such a token is not part of the text, the caller drops it.
        """
        if self._closed:
            raise ClosedError(f"the text has ended ({'stop string' if self.stopped else 'flush'}), got token {token}")
        piece = self._detokenizer.push(token)
        if not self._stops:
            return piece
        text = self._take(piece)
        cut = len(text) if self.stopped else self._unsettled_from(text)
        self._held = text[cut:]
        return text[:cut]

    def flush(self) -> str:
        """End the text; returns what was held back (the start of a stop string that did not come is text).

        The last piece of a broken UTF-8 sequence may complete a stop string. "" when the text has ended before.
        """
        if self._closed:
            return ""
        text = self._take(self._detokenizer.flush())
        self._held = ""
        self._closed = True
        return text

    def _take(self, piece: str) -> str:
        """The held text and the new piece, cut at a stop string if there is one."""
        text = self._held + piece
        found = [(start + len(stop), start, stop) for stop in self._stops if (start := text.find(stop)) >= 0]
        if not found:
            return text
        _, start, self._stop = min(found)
        self._closed = True
        return text[:start]

    def _unsettled_from(self, text: str) -> int:
        """Where the longest suffix starts that is the beginning of a stop string; len(text) when there is none."""
        for start in range(max(0, len(text) - self._longest + 1), len(text)):
            if text[start] in self._first_characters and any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)
