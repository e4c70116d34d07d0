"""Splits a text into pieces; byte-pair merging then treats each piece by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import regex

from ollama_engine.tokenizer.pretokenizer_table import PreTokenizerSpec, Rule, Stage

__all__ = ["PreTokenizer"]

Splitter = Callable[[str], list[str]]


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
        pieces = []
        at = 0
        for piece in self._split(self._surrogate.sub("\ufffd", text)):
            start = at if self._keeps_all else self._skip_space(text, at)
            at = start + len(piece)
            pieces.append(text[start:at])
        return pieces

    def _split(self, text: str) -> list[str]:
        pieces = [text]
        for split in self._splitters:
            pieces = split(pieces[0]) if len(pieces) == 1 else [p for piece in pieces for p in split(piece)]
        return pieces

    @property
    def _keeps_all(self) -> bool:
        return all(stage.rule is not Rule.KEEP for stage in self.spec.stages)

    @staticmethod
    def _skip_space(text: str, at: int) -> int:
        found = regex.compile(r"\S").search(text, at)
        return found.start() if found else len(text)


def _compile(stage: Stage) -> Splitter:
    if stage.rule in (Rule.FIND, Rule.KEEP):
        find: Splitter = regex.compile(stage.expression).findall
        return find
    if stage.rule is Rule.ISOLATE:
        return _isolator(stage.expression)
    return _digit_grouper(stage)


def _isolator(expression: str) -> Splitter:
    # With one group, split() returns gap, match, gap, ..., gap; gaps may be empty.
    search = regex.compile(expression).search
    split = regex.compile(f"({expression})").split

    def isolate(text: str) -> list[str]:
        if search(text) is None:
            return [text]
        return [piece for piece in split(text) if piece]

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

    def group(text: str) -> list[str]:
        ends = [*cuts(text), len(text)]
        return [text[start:end] for start, end in zip([0, *ends], ends) if end > start]  # noqa: B905

    return group
