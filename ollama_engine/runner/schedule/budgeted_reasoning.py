"""BudgetedReasoning: a constraint that lets a model reason for so many tokens, and then has it answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import numpy as np

from ollama_engine.runner.request.results import ValueReader
from ollama_engine.runner.schedule.marker_finder import LeadingMarker, MarkerFinder
from ollama_engine.runner.schedule.steering import Constraint, MaskSource, TokenMask

__all__ = ["BudgetedReasoning"]

GRACE = 16
"""Tokens that the model may take beyond its budget, to complete a character or a marker that it has begun."""


class _Phase(Enum):
    OPENING = auto()
    """The answer begins: with reasoning, or without."""
    REASONING = auto()
    CLOSING = auto()
    """The budget is used up: tokens are forced."""
    ANSWER = auto()


@dataclass(frozen=True, slots=True)
class _AnswerMaskMaker:
    """Has `maker` make the masks of several answers; equal for all answers that have the same one."""

    maker: MaskSource

    def make(self, constraints: Sequence[Any], /) -> None:
        """See `MaskSource`; these are BudgetedReasoning."""
        self.maker.make([constraint.answer for constraint in constraints])


@dataclass(frozen=True, slots=True)
class _AnswerReader:
    """Reads the value of an answer from its tokens behind the reasoning."""

    reader: ValueReader
    answer: str
    tokens: tuple[int, ...]

    @property
    def cut(self) -> str | None:
        """See `ValueReader`."""
        return self.reader.cut

    def read(self, text: str, tokens: Sequence[int] | None) -> object:
        """See `ValueReader`; a text without tokens is the answer's alone."""
        if tokens is None:
            return self.reader.read(text, None)
        return self.reader.read(self.answer, self.tokens)


class BudgetedReasoning:
    """Constrains the reasoning at the beginning of an answer, then leaves the answer to another constraint.

    The contract between the two: `answer` is asked about, and told of, the tokens behind the reasoning only, the first
    of them included; of an answer without reasoning, all. Where there is one, the model cannot end before it has
    answered.

    Args:
        budget: tokens of reasoning, without those that open and close it.
        opening: tokens that an answer with reasoning may begin with; empty where the prompt ends with them.
        closing: tokens that are forced when the budget is used up.
        finder: finds the end of the reasoning, from the model or forced.
        n_vocab: tokens that a mask tells of.
        ends: tokens that end an answer.
        decode: the text of the answer's tokens.
        leading: tells whether an answer begins with reasoning, whatever its tokens; None where the prompt opened it.
        answer: makes what the answer obeys; None: nothing. It is called again where what looked like an answer, such
            as line breaks, turns out to open the reasoning.
    """

    def __init__(
        self, budget: int, opening: Sequence[int], closing: Sequence[int], finder: MarkerFinder, *, n_vocab: int,
        ends: Iterable[int], decode: Callable[[Sequence[int]], str], leading: LeadingMarker | None = None,
        answer: Callable[[], Constraint] | None = None,
    ) -> None:  # fmt: skip
        self._budget = budget
        self._opening = tuple(opening)
        self._closing = tuple(closing)
        self._finder = finder
        self._n_words = (n_vocab + 31) // 32
        self._decode = decode
        self._leading = leading
        self._make_answer = answer
        self.answer = None if answer is None else answer()
        self._no_end = None if answer is None else ~self._bits(ends)
        # -- progress --
        self._phase = self._first = _Phase.OPENING if leading is not None else _Phase.REASONING
        self._n = 0
        """Tokens of this phase so far."""
        self._answer_tokens: list[int] = []
        self.answered: tuple[int, ...] = ()
        self.uncounted = 0
        """As many of `answered` came before the budget began to count."""
        self._settle()

    def resume(self, answered: Sequence[int], uncounted: int = 0) -> None:
        """Take note of tokens that had come when the request began; before anything is asked.

        uncounted: as many of them came before the budget began to count.
        """
        self.answered, self.uncounted = tuple(answered), uncounted
        if uncounted:
            self._enter(self._first)
            for token in answered[:uncounted]:
                self._advance(token)
            if self._phase is _Phase.REASONING:
                self._n = 0
            self._settle()
        for token in answered[uncounted:]:
            self.accept(token)

    def mask(self) -> TokenMask | None:
        """See `Constraint`."""
        if self._phase is _Phase.CLOSING:
            return self._bits(self._closing[self._n : self._n + 1])
        if self._phase is _Phase.REASONING:
            return self._no_end
        if self._phase is _Phase.ANSWER or self.answer is None:
            return None if self.answer is None else self.answer.mask()
        opens = self._bits(self._opening[self._n : self._n + 1])
        if self._n:
            return opens
        allowed = self.answer.mask()
        if allowed is None or not self._may_open:
            return allowed
        return opens | allowed

    def accept(self, token: int) -> None:
        """See `Constraint`."""
        self._advance(token)
        self._settle()

    def _advance(self, token: int) -> None:
        if self._phase is _Phase.OPENING:
            self._open(token)
        elif self._phase is _Phase.ANSWER:
            self._answer(token)
        else:
            self._n += 1
            closed = self._finder.push(token)
            if closed if self._phase is _Phase.REASONING else self._n == len(self._closing):
                self._enter(_Phase.ANSWER)

    def _open(self, token: int) -> None:
        """A token before it is known whether the answer begins with reasoning."""
        assert self._leading is not None
        if self.answer is not None and (self._n or self._may_open) and token == self._opening[self._n]:
            # Of the tokens that are forced, so none of the answer's.
            self._n += 1
            self._leading.push(token)
            reasons = True if self._n == len(self._opening) else None
        else:
            self._answer(token)
            reasons = self._leading.push(token)
        if reasons:
            self._answer_tokens.clear()
            self.answer = None if self._make_answer is None else self._make_answer()
            closed = self._finder.feed(self._leading.rest)
            self._enter(_Phase.ANSWER if closed else _Phase.REASONING)
        elif reasons is False:
            self._enter(_Phase.ANSWER)

    @property
    def _may_open(self) -> bool:
        """Whether the opening's first token may come: line breaks came at most."""
        return self._leading is not None and not self._leading.begun

    def _answer(self, token: int) -> None:
        self._answer_tokens.append(token)
        if self.answer is not None:
            self.answer.accept(token)

    @property
    def ended(self) -> bool:
        """See `Constraint`."""
        return self._answers and self.answer is not None and self.answer.ended

    @property
    def forced(self) -> Sequence[int]:
        """See `Constraint`."""
        if self._phase is _Phase.CLOSING:
            return self._closing[self._n :]
        if self._phase is _Phase.OPENING and self._n and self.answer is not None:
            return self._opening[self._n :]
        return self.answer.forced if self._phase is _Phase.ANSWER and self.answer is not None else ()

    def foresee(self, guesses: Sequence[int]) -> Sequence[tuple[int, bool]]:
        """See `Constraint`; guesses of the reasoning, and of what may follow it, are left as they are."""
        if self._phase is _Phase.ANSWER and self.answer is not None:
            return self.answer.foresee(guesses)
        return [(guess, False) for guess in guesses]

    @property
    def maker(self) -> MaskSource | None:
        """See `Constraint`."""
        maker = self.answer.maker if self._answers and self.answer is not None else None
        return None if maker is None else _AnswerMaskMaker(maker)

    def reader(self, cut: str | None) -> ValueReader | None:
        """See `Constraint`."""
        reader = None if self.answer is None else self.answer.reader(cut)
        if reader is None:
            return None
        return _AnswerReader(reader, self._decode(self._answer_tokens), tuple(self._answer_tokens))

    @property
    def _answers(self) -> bool:
        """Whether the next token may be the answer's."""
        return self._phase is _Phase.ANSWER or (self._phase is _Phase.OPENING and not self._n)

    def _settle(self) -> None:
        """Close where the budget is used up."""
        if self._phase is not _Phase.REASONING or self._n < self._budget:
            return
        if self._finder.between or self._n >= self._budget + GRACE:
            self._enter(_Phase.CLOSING)

    def _enter(self, phase: _Phase) -> None:
        self._phase, self._n = phase, 0

    def _bits(self, tokens: Iterable[int]) -> TokenMask:
        """A mask that allows these tokens only."""
        words = np.zeros(self._n_words, np.uint32)
        for token in tokens:
            words[token >> 5] |= np.uint32(1 << (token & 31))
        return words
