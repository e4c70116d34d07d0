"""HeadDrafter: which token and hidden state each row of the head has, and what its sequence holds. Numbers only."""

from __future__ import annotations

from typing import cast
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine.input import FloatArray
from ollama_engine.runner.schedule.step_costs import StepPrices
from ollama_engine.runner.speculative import next_tokens
from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.guessing import SURE, USUAL, Guess
from ollama_engine.runner.speculative.lookup import LookupDrafter
from ollama_engine.runner.speculative.next_tokens import HeadDrafter, NextTokenSource

PRICES = StepPrices(1, 10.0, lambda rows: 10.0 + rows)
OWN = 1000.0
"""Added to the state of the last row, in the head's own hidden states."""


class Head:
    """Stands for a head with one sequence: its rows are pairs of a token and the number of a hidden state."""

    num_ctx = 4096
    n_first = 0

    def __init__(self) -> None:
        self.sure, self.usual = Acceptance(expected=SURE), Acceptance(expected=USUAL)
        self.rows: list[tuple[int, float]] = []
        self.free = [0]

    def take(self) -> int | None:
        return self.free.pop() if self.free else None

    def give_back(self, sequence: int) -> None:
        self.rows, self.free = [], [sequence]

    def cut(self, sequence: int, n: int) -> int:
        self.rows = self.rows[:n]
        return len(self.rows)

    def guess(self, drafter: HeadDrafter, *guesses: int) -> None:
        """What `NextTokenSource.make` does, with these guesses."""
        for token in guesses:
            part = drafter.next_part(512)
            assert part.hidden is not None
            assert part.position == len(self.rows)
            self.rows += zip(part.tokens, part.hidden[:, 0].tolist(), strict=True)
            drafter.take(part, Guess(token, 0.9, part.hidden[-1:] + OWN))


def drafter_of(head: Head) -> HeadDrafter:
    return HeadDrafter(cast(NextTokenSource, head), LookupDrafter(Acceptance()))


def states(begin: int, end: int) -> FloatArray:
    """The hidden state of each position is its number."""
    return np.arange(begin, end, dtype=np.float32)[:, None]


def test_rows_pair_a_token_with_the_state_before_it() -> None:
    head = Head()
    drafter, tokens = drafter_of(head), [10, 11, 12, 13]
    drafter.read_hidden(2, states(2, 3), 0)
    drafter.propose(tokens, 20)
    assert drafter.wants(PRICES, 0.5, 99.0)
    head.guess(drafter, 14, 15, 16)
    assert head.rows == [(13, 2), (14, 2 + OWN), (15, 2 + 2 * OWN)]
    assert drafter.draft.tokens == (14, 15, 16)
    tokens += [14, 15, 20]  # the third guess was wrong
    drafter.read_hidden(3, states(3, 6), 0)
    drafter.propose(tokens, 20)
    assert drafter.wants(PRICES, 0.5, 99.0)
    head.guess(drafter, 21)
    assert head.rows == [(13, 2), (14, 3), (15, 4), (20, 5)], "the model's states stand for its own"
    drafter.end([])
    assert head.free == [0]


def test_behind_a_gap_it_begins_anew() -> None:
    """Tokens that a constraint forced have no hidden states; a shift moves positions."""
    head = Head()
    drafter, tokens = drafter_of(head), list(range(10, 20))
    drafter.read_hidden(8, states(8, 9), 0)
    drafter.propose(tokens, 20)
    assert drafter.wants(PRICES, 0.5, 99.0)
    head.guess(drafter, 1)
    tokens += [20, 21]
    drafter.propose(tokens, 20)
    assert not drafter.wants(PRICES, 0.5, 99.0), "the state of the token before the last is missing"
    drafter.read_hidden(10, states(10, 11), 0)
    drafter.propose(tokens, 20)
    assert drafter.wants(PRICES, 0.5, 99.0)
    head.guess(drafter, 22)
    assert head.rows == [(21, 10)]


def test_states_that_wait_too_long_are_dropped() -> None:
    head = Head()
    drafter, tokens = drafter_of(head), list(range(100))
    with patch.object(next_tokens, "MOST_WAITING", 8):
        for at in range(50, 99):
            drafter.read_hidden(at, states(at, at + 1), 0)
            assert min(at - 49, 4) <= drafter._n_waiting <= 8
    drafter.propose(tokens, 20)
    assert drafter.wants(PRICES, 0.5, 99.0)
    head.guess(drafter, 1)
    assert head.rows == [(at + 1, at) for at in range(99 - len(head.rows), 99)]
    assert 4 <= len(head.rows) <= 8


def test_no_states_are_asked_for_while_a_look_is_far() -> None:
    """Each would be copied for nothing; when the look comes, as many are there as the head has use for."""
    head = Head()
    drafter, tokens = drafter_of(head), list(range(10))
    drafter.source.usual.count(0, right=False)
    read: list[int] = []
    looks = 0
    for at in range(9, 2000):
        tokens.append(1000 + at)
        if drafter.reads:
            read.append(at)
            drafter.read_hidden(at, states(at, at + 1), 0)
        drafter.propose(tokens, 20)
        if drafter.wants(PRICES, 50.0, 1e9):
            looks += 1
            head.guess(drafter, 1, 2)
    assert 3 < looks < 10
    assert len(read) < 0.4 * 2000
    assert read[0] == 9


def test_the_head_of_the_first_tokens_guesses_where_texts_consist_of_these() -> None:
    head = Head()
    head.n_first = 100
    drafter = drafter_of(head)
    tokens = list(range(90))
    drafter.propose(tokens, 20)
    assert drafter.covered == pytest.approx(1.0)
    for at in range(100):
        tokens.append(100 + at)
        drafter.propose(tokens, 20)
        assert (drafter.covered > next_tokens.COVERED) == (at < 15)
    for _ in range(2 * next_tokens.SEEN):
        tokens.append(7)
        drafter.propose(tokens, 20)
    assert drafter.covered > next_tokens.COVERED


def test_a_long_part_is_computed_in_pieces() -> None:
    head = Head()
    drafter, tokens = drafter_of(head), list(range(10))
    drafter.read_hidden(3, states(3, 9), 0)
    drafter.propose(tokens, 20)
    assert drafter.wants(PRICES, 0.5, 99.0)
    for n in (4, 2):
        part = drafter.next_part(4)
        assert part.hidden is not None
        assert (len(part.tokens), len(part.hidden)) == (n, n)
        assert drafter.draft.tokens == ()
        drafter.take(part, Guess(77, 0.9, part.hidden[-1:]))
    assert drafter.draft.tokens == (77,)


def test_without_a_sequence_nothing_is_guessed() -> None:
    head = Head()
    head.free = []
    drafter = drafter_of(head)
    drafter.read_hidden(0, states(0, 1), 0)
    drafter.propose([1, 2], 20)
    assert not drafter.wants(PRICES, 0.5, 99.0)
