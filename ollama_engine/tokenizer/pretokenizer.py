"""Splits a text into pieces; byte-pair merging then treats each piece by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice

import regex

from ollama_engine.tokenizer.checkpoint import AT_ONCE
from ollama_engine.tokenizer.pretokenizer_table import PreTokenizerSpec, Rule, Stage

__all__ = ["PreTokenizer"]

BATCH = 2048
"""Pieces of a long text that are found at once."""

Splitter = Callable[[str], Iterable[str]]
"""The pieces of a text: a list, or of a long text an iterator, which finds them as they are taken.

A short text is split with Python's lock held, because giving it up for each piece takes half as long again. In a long
one, other threads run while a piece is found, which may be long too.
"""


class PreTokenizer:
    """The stages of a spec, compiled.

    A lone surrogate (an invalid byte) is matched as U+FFFD, and stays as it is in the pieces.
    """

    def __init__(self, spec: PreTokenizerSpec) -> None:
        self.spec = spec
        self._splitters = [_compile(stage) for stage in spec.stages]
        self._surrogate = regex.compile("[\ud800-\udfff]")

    def split(self, text: str) -> list[str]:
        """The pieces in order. Joined they equal the text, unless the spec drops white space."""
        if text.isascii() or not self._surrogate.search(text):
            return self._split(text)
        return list(self._originals(text, self._split(self._surrogate.sub("\ufffd", text))))

    def batches(self, text: str) -> Iterator[list[str]]:
        """`split`, some pieces at a time. A long text is split as they are taken, so that the caller can stop."""
        if len(text) <= AT_ONCE:
            yield self.split(text)
            return
        has_surrogates = not text.isascii() and self._surrogate.search(text) is not None
        pieces = self._split_lazily(self._surrogate.sub("\ufffd", text) if has_surrogates else text)
        if has_surrogates:
            pieces = self._originals(text, pieces)
        while batch := list(islice(pieces, BATCH)):
            yield batch

    def _split(self, text: str) -> list[str]:
        pieces = [text]
        for split in self._splitters:
            pieces = list(split(pieces[0])) if len(pieces) == 1 else [p for piece in pieces for p in split(piece)]
        return pieces

    def _split_lazily(self, text: str) -> Iterator[str]:
        pieces = iter([text])
        for split in self._splitters:
            pieces = chain.from_iterable(map(split, pieces))
        return pieces

    def _originals(self, text: str, pieces: Iterable[str]) -> Iterator[str]:
        """The parts of a text at the places where its copy without surrogates has the pieces."""
        at = 0
        for piece in pieces:
            start = at if self._keeps_all else self._skip_space(text, at)
            at = start + len(piece)
            yield text[start:at]

    @property
    def _keeps_all(self) -> bool:
        return all(stage.rule is not Rule.KEEP for stage in self.spec.stages)

    @staticmethod
    def _skip_space(text: str, at: int) -> int:
        found = regex.compile(r"\S").search(text, at)
        return found.start() if found else len(text)


def _compile(stage: Stage) -> Splitter:
    if stage.rule in (Rule.FIND, Rule.KEEP):
        return _finder(stage.expression)
    if stage.rule is Rule.ISOLATE:
        return _isolator(stage.expression)
    return _digit_grouper(stage)


def _finder(expression: str) -> Splitter:
    pattern = regex.compile(expression)

    def find(text: str) -> Iterable[str]:
        if len(text) > AT_ONCE:
            return (match[0] for match in pattern.finditer(text, concurrent=True))
        found: list[str] = pattern.findall(text, concurrent=False)
        return found

    return find


def _isolator(expression: str) -> Splitter:
    # With one group, split() returns gap, match, gap, ..., gap; gaps may be empty.
    alone = regex.compile(expression)
    grouped = regex.compile(f"({expression})")

    def isolate(text: str) -> Iterable[str]:
        if len(text) > AT_ONCE:
            return filter(None, grouped.splititer(text, concurrent=True))
        if alone.search(text, concurrent=False) is None:
            return [text]
        return [piece for piece in grouped.split(text, concurrent=False) if piece]

    return isolate


def _digit_grouper(stage: Stage) -> Splitter:
    """Splits runs of digits into threes from the right. The original's look-ahead expression takes quadratic time."""
    find_runs = regex.compile(stage.expression).finditer
    # For Oniguruma, which the original uses, Latin-1's superscripts and fractions are word characters, and joiners are
    # not; for `regex` it is the other way round.
    is_word = regex.compile(r"[²³¹¼½¾]|[^\W\u200c\u200d]").match

    def cuts(text: str) -> Iterator[int]:
        for run in find_runs(text):
            start, end = run.span()
            if stage.rule is Rule.GROUP_WORD and is_word(text, end):
                continue
            if stage.rule is not Rule.CUT:
                yield start
            yield from range(start + (end - start) % 3, end, 3)
            if stage.rule is not Rule.CUT:
                yield end

    def group(text: str) -> Iterator[str]:
        start = 0
        for end in chain(cuts(text), (len(text),)):
            if end > start:
                yield text[start:end]
            start = end

    return group
