"""BudgetedReasoning: which tokens it forces when, and what it leaves to the constraint of the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ollama_engine.runner.schedule.budgeted_reasoning import GRACE, BudgetedReasoning
from ollama_engine.runner.schedule.marker_finder import LeadingMarker, MarkerFinder
from ollama_engine.runner.schedule.steering import TokenMask

N_VOCAB = 70
END = 69
THINK, CLOSE = 66, 67
CLOSING = (50, CLOSE)


def token_bytes(token: int) -> bytes:
    return {
        THINK: b"<think>",
        CLOSE: b"</think>",
        60: b"</",
        61: b"think",
        62: b">",
        63: b"\xe2",
        64: b"\x82\xac",
        55: b"\n",
        56: b"\n\n",
        57: b"<",
        58: b">\n",
        59: b"><",
    }.get(token, bytes([ord("a") + token % 26]))


class Answer:
    """Allows one token after the other, and knows what came."""

    def __init__(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)
        self.seen: list[int] = []

    def mask(self) -> TokenMask:
        return bits(self.tokens[len(self.seen)])

    def accept(self, token: int) -> None:
        self.seen.append(token)


def bits(*tokens: int) -> TokenMask:
    words = np.zeros((N_VOCAB + 31) // 32, np.uint32)
    for token in tokens:
        words[token // 32] |= np.uint32(1 << token % 32)
    return words


def allowed(constraint: BudgetedReasoning) -> list[int] | None:
    mask = constraint.mask()
    return None if mask is None else [i for i in range(N_VOCAB) if mask[i // 32] >> (i % 32) & 1]


def reasoning(budget: int, opening: Sequence[int] = (), *answers: Answer) -> BudgetedReasoning:
    """`answers`: those that it makes, one after the other."""
    finder = MarkerFinder("</think>", token_bytes)
    marker = b"".join(map(token_bytes, opening)).decode()
    return BudgetedReasoning(
        budget, opening, CLOSING, finder, n_vocab=N_VOCAB, ends=[END], decode=str,
        leading=LeadingMarker(marker, token_bytes) if opening else None,
        answer=iter(answers).__next__ if answers else None,
    )  # fmt: skip


def feed(constraint: BudgetedReasoning, *tokens: int) -> list[list[int] | None]:
    """What is allowed before each of them, and after the last."""
    masks = []
    for token in tokens:
        masks.append(allowed(constraint))
        assert masks[-1] is None or token in masks[-1]
        constraint.accept(token)
    return [*masks, allowed(constraint)]


def test_it_forces_the_closing_tokens_when_the_budget_is_used_up() -> None:
    assert feed(reasoning(2), 1, 2, 50, CLOSE, 3, END) == [None, None, [50], [CLOSE], None, None, None]


def test_no_budget_closes_at_once() -> None:
    assert feed(reasoning(0), 50, CLOSE, 3) == [[50], [CLOSE], None, None]
    assert feed(reasoning(0, [THINK]), THINK, 50, CLOSE) == [None, [50], [CLOSE], None]


@pytest.mark.parametrize("close", [(CLOSE,), (60, 61, 62)])
def test_who_closes_in_time_is_left_alone(close: tuple[int, ...]) -> None:
    tokens = (1, 2, *close, *range(20))
    assert feed(reasoning(5), *tokens) == [None] * (len(tokens) + 1)


def test_an_answer_without_reasoning_is_left_alone() -> None:
    assert feed(reasoning(2, [THINK]), *range(9)) == [None] * 10


def test_counting_begins_behind_the_opening() -> None:
    assert feed(reasoning(1, [65, THINK]), 65, THINK, 1, 50) == [None, None, None, [50], [CLOSE]]


@pytest.mark.parametrize(
    ("tokens", "forced_after"),
    [((1, 60, 61, 5), 4), ((1, 60, 5), 3), ((1, 63, 64), 3), ((60, 60, 60, 5), 4), ((1, 2), 2)],
)
def test_characters_and_markers_that_have_begun_are_completed(tokens: tuple[int, ...], forced_after: int) -> None:
    masks = feed(reasoning(2), *tokens)
    assert masks.index([50]) == forced_after


def test_grace_has_an_end() -> None:
    masks = feed(reasoning(2), *[60] * (2 + GRACE))
    assert masks == [*[None] * (2 + GRACE), [50]]


def test_a_marker_that_is_completed_in_grace_needs_no_other() -> None:
    assert feed(reasoning(2), 1, 60, 61, 62, 5) == [None] * 6


@pytest.mark.parametrize(
    "begin", [(55, THINK), (55, 55, THINK), (56, THINK), (57, 61, 62), (55, 57, 61, 58), (56, 57, 61, 62)]
)
def test_reasoning_opens_behind_line_breaks_and_in_any_tokens(begin: tuple[int, ...]) -> None:
    none = [None] * len(begin)
    assert feed(reasoning(2, [THINK]), *begin, 1, 2, 50, CLOSE, 3) == [*none, None, None, [50], [CLOSE], None, None]
    assert feed(reasoning(0, [THINK]), *begin, 50, CLOSE, 3) == [*none, [50], [CLOSE], None, None]


@pytest.mark.parametrize("begin", [(56, 55, THINK), (1, THINK), (57, 61, 5, THINK), (55, 57, 55, THINK)])
def test_a_marker_further_on_opens_nothing(begin: tuple[int, ...]) -> None:
    assert feed(reasoning(2, [THINK]), *begin, *range(9)) == [None] * (len(begin) + 10)


def test_what_comes_with_the_end_of_the_opening_is_reasoning() -> None:
    opened = reasoning(2, [THINK])  # "<think><" and "/think>"
    assert feed(opened, 57, 61, 59, 1) == [None] * 5
    assert feed(reasoning(0, [THINK]), 57, 61, 59, 1, 50) == [None, None, None, None, [50], [CLOSE]]


def test_an_answer_that_may_begin_with_line_breaks_begins_anew_behind_reasoning() -> None:
    begun, answer = Answer([55, 10]), Answer([55, 10, 11])
    assert feed(reasoning(1, [65, THINK], begun, answer), 55, 65, THINK, 1, 50, CLOSE, 55)[:3] == [
        [55, 65], [10, 65], [THINK]
    ]  # fmt: skip
    assert (begun.seen, answer.seen) == ([55], [55])
    spelled, answer = Answer([55, 57, 61, 62]), Answer([10, 11])
    feed(reasoning(0, [THINK], spelled, answer), 55, 57, 61, 62, 50, CLOSE, 10)
    assert (spelled.seen, answer.seen) == ([55, 57, 61, 62], [10])
    alone = Answer([55, 10, 11, 12])
    feed(reasoning(0, [THINK], alone), 55, 10, 11)
    assert alone.seen == [55, 10, 11]


def test_the_answer_sees_its_own_tokens_only_and_the_end_waits_for_it() -> None:
    answer = Answer([10, 11])
    masks = feed(reasoning(1, (), answer), 1, 50, CLOSE, 10)
    assert masks == [[token for token in range(N_VOCAB) if token != END], [50], [CLOSE], [10], [11]]
    assert answer.seen == [10]


def test_with_an_answer_that_is_constrained_reasoning_begins_or_the_answer() -> None:
    answer = Answer([10, 11])
    assert feed(reasoning(3, [65, THINK], answer), 10) == [[10, 65], [11]]
    assert answer.seen == [10]
    opened = reasoning(3, [65, THINK], Answer([10, 11]), other := Answer([10, 11]))
    assert feed(opened, 65) == [[10, 65], [THINK]]
    feed(opened, THINK, 1, CLOSE, 10)
    assert other.seen == [10]


@pytest.mark.parametrize(
    ("tokens", "found", "between"),
    [((), False, True), ((60,), False, False), ((60, 61), False, False), ((60, 61, 62), True, True),
     ((60, 61, 5), False, True), ((63,), False, False), ((63, 64), False, True)],
)  # fmt: skip
def test_markers_are_found_however_they_are_divided(tokens: Any, found: bool, between: bool) -> None:
    finder = MarkerFinder("</think>", token_bytes)
    for token in tokens:
        finder.push(token)
    assert (finder.has_come, finder.between) == (found, between)
