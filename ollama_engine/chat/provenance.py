"""Traced: a str that remembers which characters of a rendered text the template wrote itself.

A template's literals are `Traced`, with all characters trusted; callers' texts are plain str, with none trusted.
Operations keep the marks of the characters they keep, and one that is not known here returns a plain str. So trust can
get lost on the way and never comes out of nothing: where in doubt, a text counts as typed by a user.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, SupportsIndex

from ollama_engine.tokenizer._texts import join_texts

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Safe", "Span", "Traced", "joined", "trusted_spans"]

Span = tuple[int, int]
"""First character, and the one behind the last."""


class Traced(str):
    """A text of which some characters are trusted. Compares, hashes and searches as any str does."""

    __slots__ = ("_spans",)
    _spans: tuple[Span, ...]

    def __new__(cls, text: str = "", spans: Iterable[Span] = ()) -> Self:
        """`spans`: the trusted characters, ascending and apart from each other.

        None by default: jinja2 and str make texts of the class of others (`type(text)(...)`) and know nothing of marks.
        """
        made = super().__new__(cls, text)
        made._spans = tuple(spans)
        return made

    @classmethod
    def whole(cls, text: str) -> Self:
        """A text of the template, trusted from its first to its last character."""
        return cls(text, ((0, len(text)),) if text else ())

    def __str__(self) -> str:
        return self

    def __add__(self, other: str) -> str:
        return joined((self, other)) if _is_text(other) else NotImplemented

    def __radd__(self, other: str) -> str:
        return joined((other, self)) if _is_text(other) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        if self._spans == ((0, len(self)),):
            return Traced.whole(str.__mul__(str.__str__(self), count))
        return joined([self] * count.__index__())

    __rmul__ = __mul__

    def __getitem__(self, key: SupportsIndex | slice) -> str:
        if not isinstance(key, slice):
            at = range(len(self))[key]
            return self._cut(at, at + 1)
        begin, end, step = key.indices(len(self))
        return self._cut(begin, max(begin, end)) if step == 1 else super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        return (self._cut(at, at + 1) for at in range(len(self)))

    def join(self, parts: Iterable[str], /) -> str:
        found: list[str] = []
        for part in parts:
            found += (self, part) if found else (part,)
        return joined(found)

    # -- what keeps a part of it ---------------------------------------------------------------------------------------

    def lstrip(self, characters: str | None = None, /) -> str:
        return self._cut(len(self) - len(super().lstrip(characters)), len(self))

    def rstrip(self, characters: str | None = None, /) -> str:
        return self._cut(0, len(super().rstrip(characters)))

    def strip(self, characters: str | None = None, /) -> str:
        begin = len(self) - len(super().lstrip(characters))
        return self._cut(begin, max(begin, len(super().rstrip(characters))))

    def removeprefix(self, prefix: str, /) -> str:
        return self._cut(len(self) - len(super().removeprefix(prefix)), len(self))

    def removesuffix(self, suffix: str, /) -> str:
        return self._cut(0, len(super().removesuffix(suffix)))

    def split(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._located(super().split(sep, maxsplit), sep)

    def rsplit(self, sep: str | None = None, maxsplit: SupportsIndex = -1) -> list[Any]:
        return self._located(super().rsplit(sep, maxsplit), sep)

    def splitlines(self, keepends: bool = False) -> list[Any]:
        lines, at = [], 0
        for line, whole in zip(super().splitlines(keepends), super().splitlines(True), strict=True):
            lines.append(self._cut(at, at + len(line)))
            at += len(whole)
        return lines

    def partition(self, sep: str, /) -> tuple[Any, Any, Any]:
        before, found, after = map(len, super().partition(sep))
        return self._cut(0, before), self._cut(before, before + found), self._cut(len(self) - after, len(self))

    def rpartition(self, sep: str, /) -> tuple[Any, Any, Any]:
        before, found, after = map(len, super().rpartition(sep))
        return self._cut(0, before), self._cut(before, before + found), self._cut(len(self) - after, len(self))

    # -- what changes characters ---------------------------------------------------------------------------------------

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        """`str.replace`. A text that replaces trusted characters keeps its marks; one that replaces others has none."""
        left = count.__index__()
        if not isinstance(old, str) or not isinstance(new, str) or not old:
            return super().replace(old, new, left)
        parts: list[str] = []
        begin = 0
        while left != 0 and (place := self.find(old, begin)) >= 0:
            whole = self._cut(place, place + len(old))
            trusted = trusted_spans(whole) == ((0, len(old)),)
            parts += (self._cut(begin, place), new if trusted else _plain(new))
            begin, left = place + len(old), left - 1
        return joined([*parts, self._cut(begin, len(self))])

    def lower(self) -> str:
        return self._respelled(super().lower())

    def upper(self) -> str:
        return self._respelled(super().upper())

    def capitalize(self) -> str:
        return self._respelled(super().capitalize())

    def title(self) -> str:
        return self._respelled(super().title())

    # ------------------------------------------------------------------------------------------------------------------

    def _respelled(self, text: str) -> str:
        """The same characters in other letters; where one becomes several, places are not known any more."""
        return Traced(text, self._spans) if len(text) == len(self) else text

    def _cut(self, begin: int, end: int) -> str:
        if begin == 0 and end == len(self):
            return self
        text = super().__getitem__(slice(begin, end))
        spans = [
            (max(first, begin) - begin, min(last, end) - begin)
            for first, last in self._spans
            if first < end and last > begin and begin < end
        ]
        return Traced(text, spans) if spans else text

    def _located(self, parts: list[str], sep: str | None) -> list[Any]:
        """Pieces of this text that `sep` (None: white space) stands between, with their marks."""
        pieces, at = [], 0
        for part in parts:
            if sep is None:  # no white space at its beginning, and nothing else before it
                at = self.index(part, at)
            pieces.append(self._cut(at, at + len(part)))
            at += len(part) + len(sep or "")
        return pieces


class Safe(Traced):
    """The result of jinja2's `safe`: complete HTML, so text that is added to it is escaped.

    Templates that use it mean no such thing, but the models were trained on what comes out.
    """

    __slots__ = ()

    def __html__(self) -> str:
        return self

    def __str__(self) -> str:
        return Traced(str.__str__(self), self._spans)

    def __add__(self, other: str) -> str:
        return self.of(joined((self, self.escaped(other)))) if isinstance(other, str) else NotImplemented

    def __radd__(self, other: str) -> str:
        return self.of(joined((self.escaped(other), self))) if isinstance(other, str) else NotImplemented

    def __mul__(self, count: SupportsIndex) -> str:
        return self.of(super().__mul__(count))

    __rmul__ = __mul__

    def join(self, parts: Iterable[str], /) -> str:
        return self.of(super().join(map(self.escaped, parts)))

    def replace(self, old: str, new: str, count: SupportsIndex = -1, /) -> str:
        return self.of(super().replace(old, self.escaped(new), count))

    def _respelled(self, text: str) -> str:
        return self.of(super()._respelled(text))

    def _cut(self, begin: int, end: int) -> str:
        return self.of(super()._cut(begin, end))

    @classmethod
    def of(cls, text: str) -> Safe:
        """The text as it stands, with its marks."""
        return cls(str.__str__(text), trusted_spans(text))

    @classmethod
    def escaped(cls, text: str) -> Safe:
        """The text with entities for the five characters that HTML reads, unless it is safe already."""
        if hasattr(text, "__html__"):
            return cls.of(text)
        for character, entity in (("&", "&amp;"), (">", "&gt;"), ("<", "&lt;"), ("'", "&#39;"), ('"', "&#34;")):
            text = text.replace(character, Traced.whole(entity) if isinstance(text, Traced) else entity)
        return cls.of(text)


def joined(parts: Iterable[str]) -> str:
    """These texts, one behind the other."""
    texts: list[str] = []
    spans: list[Span] = []
    at = 0
    for part in parts:
        for first, last in trusted_spans(part):
            if spans and spans[-1][1] == at + first:
                spans[-1] = (spans[-1][0], at + last)
            else:
                spans.append((at + first, at + last))
        texts.append(part)
        at += len(part)
    text = join_texts(texts)
    return Traced(text, spans) if spans else text


def trusted_spans(text: str) -> tuple[Span, ...]:
    """The characters that the template wrote."""
    return text._spans if isinstance(text, Traced) else ()


def _is_text(value: object) -> bool:
    """Whether it is a str, and none that escapes what is added to it (jinja2's `safe` makes such)."""
    return isinstance(value, str) and not hasattr(value, "__html__")


def _plain(text: str) -> str:
    return str.__str__(text)
