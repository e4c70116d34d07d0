"""Scanner: reads an answer that is still being written, and waits where it has to.

Dialects are written as generators over a scanner, like a parser of a whole text would be. A `yield` means "the text so
far does not decide"; the parser resumes the generator when there is more. What a reading step does depends on the
characters alone, never on how they were cut into chunks, and each character is looked at a bounded number of times.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable
from functools import lru_cache
from typing import Protocol, TypeVar

__all__ = [
    "ENDS",
    "WORD",
    "MalformedError",
    "Markers",
    "Reading",
    "Scanner",
    "Sink",
    "ValueScanner",
    "ignore",
    "markers",
]

T = TypeVar("T")
Reading = Generator[None, None, T]
"""A part of a parser: yields where it needs more text, returns what it read."""
Sink = Callable[[str], None]
"""Takes pieces of text as soon as they are certain."""

ENDS = "the answer ends inside a call"
WORD = re.compile(r"[^\s<>\[\]{}()\"'`=,;|｜]+")
_SPACE = re.compile(r"\s*")


class MalformedError(Exception):
    """The text breaks the dialect's syntax; raised and caught inside the parser only."""


class ValueScanner(Protocol):
    """Follows one value of a data format through chunks of text."""

    done: bool
    problem: str | None

    def scan(self, text: str, at: int) -> tuple[int, str]:
        """Read from `at` on: where it stops, and what has been read as JSON. Stops when `done` or at a `problem`."""

    def close(self) -> None:
        """No more text comes; what only that can tell (a number's end) is now `done`."""


class Markers:
    """Texts to look for: the leftmost, and of those that begin there the longest.

    texts: the markers.
    line_breaks: so many line breaks right before a marker are layout and belong to it.
    """

    def __init__(self, texts: Iterable[str], line_breaks: int = 2) -> None:
        self.texts = tuple(sorted(set(texts), key=lambda text: (-len(text), text)))
        spelled = ["\n" * count + text for text in self.texts for count in range(line_breaks + 1)]
        self._longest = max(map(len, spelled), default=1)
        self._beginnings = frozenset(text[:end] for text in spelled for end in range(1, len(text)))
        self._first_characters = frozenset(text[0] for text in spelled)
        choice = "|".join(map(re.escape, self.texts)) if self.texts else r"(?!)"
        self._pattern = re.compile(f"\n{{0,{line_breaks}}}({choice})" if line_breaks else f"({choice})")

    def find(self, text: str, at: int) -> re.Match[str] | None:
        """The first marker at or behind `at`; its group 1 is without line breaks."""
        return self._pattern.search(text, at)

    def undecided(self, text: str, at: int) -> int:
        """Where the end of the text begins that more text may make a marker; its length where there is no such end."""
        for place in range(max(at, len(text) - self._longest + 1), len(text)):
            if text[place] in self._first_characters and text[place:] in self._beginnings:
                return place
        return len(text)


@lru_cache(maxsize=256)
def markers(*texts: str, line_breaks: int = 2) -> Markers:
    """Markers of these texts; made once."""
    return Markers(texts, line_breaks)


def ignore(text: str) -> None:
    """A sink for text that is wanted nowhere but in a recording."""


class Scanner:
    """The text of an answer as far as it came, and how much of it has been read."""

    def __init__(self) -> None:
        self._text = ""
        self._at = 0
        self._recording: list[str] | None = None
        self.closed = False

    def extend(self, text: str) -> None:
        """More text came."""
        self._text = self._text[self._at :] + text
        self._at = 0

    def stop(self) -> None:
        """No more text comes."""
        self.closed = True

    def record(self, before: str = "") -> None:
        """From here on keep what is read, behind `before`."""
        self._recording = [before]

    def recorded(self) -> str:
        """The text read since `record`; ends the recording."""
        text = "".join(self._recording or ())
        self._recording = None
        return text

    def _take(self, end: int) -> str:
        piece = self._text[self._at : end]
        self._at = end
        if self._recording is not None and piece:
            self._recording.append(piece)
        return piece

    def until(self, markers: Markers, sink: Sink) -> Reading[str | None]:
        """Pass text to the sink up to the next marker; returns it, or None where the answer ends first."""
        while True:
            match = markers.find(self._text, self._at)
            certain = len(self._text) if self.closed else markers.undecided(self._text, self._at)
            if match is not None and match.start() < certain:
                self._pass_on(match.start(), sink)
                self._take(match.end())
                return match[1]
            self._pass_on(certain, sink)
            if self.closed:
                return None
            yield

    def text_before(self, end: str, sink: Sink) -> Reading[None]:
        """Pass text to the sink up to a marker that is not read; without it, malformed."""
        where = markers(end, line_breaks=0)
        while True:
            match = where.find(self._text, self._at)
            self._pass_on(where.undecided(self._text, self._at) if match is None else match.start(), sink)
            if match is not None:
                return
            if self.closed:
                raise MalformedError(f"expected {end!r}, but the answer ends")
            yield

    def unread(self, count: int) -> None:
        """Go back by so many characters of the marker that was read last; not while recording."""
        self._at -= count

    def _pass_on(self, end: int, sink: Sink) -> None:
        if end > self._at:
            sink(self._take(end))

    def peek(self, count: int = 1) -> Reading[str]:
        """The next `count` characters, fewer where the answer ends before; reads nothing."""
        while len(self._text) - self._at < count and not self.closed:
            yield
        return self._text[self._at : self._at + count]

    def characters(self, count: int) -> Reading[str]:
        """Read so many characters; fewer where the answer ends before."""
        yield from self.peek(count)
        return self._take(min(self._at + count, len(self._text)))

    def accept(self, *texts: str) -> Reading[str | None]:
        """Read one of the texts if the answer goes on with it, the longest that does."""
        for text in sorted(texts, key=len, reverse=True):
            while not self.closed and len(self._text) - self._at < len(text):
                if not text.startswith(self._text[self._at :]):
                    break
                yield
            if self._text.startswith(text, self._at):
                return self._take(self._at + len(text))
        return None

    def expect(self, *texts: str) -> Reading[str]:
        """Read one of the texts, or it is malformed."""
        found = yield from self.accept(*texts)
        if found is None:
            raise MalformedError(f"expected {' or '.join(map(repr, texts))}, {(yield from self._what_came())}")
        return found

    def _what_came(self) -> Reading[str]:
        came = yield from self.peek()
        return f"got {came!r}" if came else "but the answer ends"

    def skip_space(self) -> Reading[None]:
        """Read white space."""
        yield from self.run(_SPACE)

    def word(self, expected: str = "a name") -> Reading[str]:
        """Read up to white space, a bracket, a quote or the like; nothing is malformed."""
        found = yield from self.run(WORD)
        if not found:
            raise MalformedError(f"expected {expected}, {(yield from self._what_came())}")
        return found

    def text_to(self, *ends: str) -> Reading[tuple[str, str]]:
        """Read up to one of the texts and behind it: what stood before it, and which it was; without it, malformed."""
        pieces: list[str] = []
        end = yield from self.until(markers(*ends, line_breaks=0), pieces.append)
        if end is None:
            raise MalformedError(f"expected {' or '.join(map(repr, ends))}, but the answer ends")
        return "".join(pieces), end

    def run(self, pattern: re.Pattern[str]) -> Reading[str]:
        """Read while the pattern, a class of characters repeated, goes on."""
        pieces = []
        while True:
            match = pattern.match(self._text, self._at)
            if match is not None:
                pieces.append(self._take(match.end()))
            if self._at < len(self._text) or self.closed:
                return "".join(pieces)
            yield

    def value(self, scanner: ValueScanner, sink: Sink) -> Reading[None]:
        """Read one value and pass it on as JSON, or it is malformed."""
        while not scanner.done:
            if self._at < len(self._text):
                end, piece = scanner.scan(self._text, self._at)
                self._take(end)
                if piece:
                    sink(piece)
                if scanner.problem is not None:
                    raise MalformedError(scanner.problem)
            elif self.closed:
                scanner.close()
                if not scanner.done:
                    raise MalformedError("the answer ends inside a value")
            else:
                yield
