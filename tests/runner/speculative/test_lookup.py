"""LookupDrafter: what it guesses, how sure it is, and whose answers it looks up."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.runner.speculative.acceptance import Acceptance
from ollama_engine.runner.speculative.lookup import LookupDrafter
from ollama_engine.runner.speculative.ngram_index import LONGEST, NgramIndex, agreements, chances_of
from ollama_engine.runner.speculative.recent_answers import MOST_NAMESPACES, MOST_TOKENS, AnswerMemory, RecentAnswers

TEXT = [7, 3, 9, 4, 1, 8, 2, 6]


def test_what_followed_comes_again() -> None:
    draft = LookupDrafter(Acceptance()).propose([*TEXT, 7, 3, 9], 4)
    assert draft.tokens == (4, 1, 8, 2)
    assert draft.chances is not None
    assert list(draft.chances) == sorted(draft.chances, reverse=True)


def test_nothing_is_guessed_where_nothing_came_before() -> None:
    drafter = LookupDrafter(Acceptance())
    assert drafter.propose(TEXT, 4).tokens == ()
    assert drafter.propose([*TEXT, 5], 4).tokens == ()
    assert drafter.propose([*TEXT, 5, 7, 3], 0).tokens == ()


def test_a_right_guess_goes_on_where_it_was_and_a_wrong_one_is_given_up() -> None:
    drafter = LookupDrafter(Acceptance())
    context = [*TEXT, 7, 3]
    assert drafter.propose(context, 2).tokens == (9, 4)
    context += [9, 4]
    assert drafter.propose(context, 2).tokens == (1, 8)
    context += [5]
    assert drafter.propose(context, 2).tokens == ()


def test_the_longest_match_wins_and_of_equal_ones_the_latest() -> None:
    drafter = LookupDrafter(Acceptance())
    assert drafter.propose([1, 2, 3, 50, 9, 2, 3, 60, 1, 2, 3], 1).tokens == (50,)
    assert LookupDrafter(Acceptance()).propose([2, 3, 50, 9, 2, 3, 60, 8, 2, 3], 1).tokens == (60,)


def test_after_a_shift_it_begins_anew() -> None:
    drafter = LookupDrafter(Acceptance())
    drafter.propose([*TEXT, *TEXT], 4)
    assert drafter.propose([*TEXT, 7, 3], 2).tokens == (9, 4)


def test_chances_are_learned_from_guesses_that_no_step_verified() -> None:
    shared = Acceptance()
    rng = np.random.default_rng(0)
    drafter, context = LookupDrafter(Acceptance(shared)), [1, 2]
    contested, single = 2, 64 * 2 + 2  # matches of two tokens
    before = shared.chance(contested), shared.chance(single)
    for _ in range(30):  # after 1, 2 comes anything
        drafter.propose(context, 0)
        context += [int(rng.integers(10, 10_000)), 1, 2]
    assert shared.chance(contested) < before[0] / 3
    assert before[1] / 2 < shared.chance(single) < before[1]
    chances = LookupDrafter(Acceptance(shared)).propose([*TEXT, 7, 3], 1).chances
    assert chances == pytest.approx((shared.chance(single),))


def test_a_guess_is_surer_where_earlier_places_agree() -> None:
    def chance(context: list[int], recent: RecentAnswers | None = None) -> float:
        draft = LookupDrafter(Acceptance(), None if recent is None else lambda: recent).propose([*context, 1, 2], 1)
        assert draft.tokens == (7,)
        assert draft.chances is not None
        return draft.chances[0]

    rarely, once, alike = [1, 2, 4, 1, 2, 5, 1, 2, 6, 1, 2, 7], [1, 2, 7], [1, 2, 7, 9, 1, 2, 7]
    assert chance(rarely) < chance([1, 2, 6, *once]) < chance(once) < chance(alike)
    recent = RecentAnswers()
    recent.add(once)
    assert chance(once, recent) == chance(alike)
    recent.add([3, 1, 2])
    assert chance(once, recent) == chance(alike), "an answer's end goes on with nothing"


def test_answers_are_found_again_in_their_namespace_only() -> None:
    memory = AnswerMemory()
    first = LookupDrafter(Acceptance(), partial(memory.of, "a"))
    first.propose([50, 51, *TEXT[:3]], 4)  # where a constraint forces tokens, several have come
    first.end(TEXT)
    asked = [60, 7, 3]
    found = LookupDrafter(Acceptance(), partial(memory.of, "a")).propose(asked, 2).tokens
    assert found == tuple(TEXT[2:4]), "those of the answer, not of its prompt"
    assert LookupDrafter(Acceptance(), partial(memory.of, "b")).propose(asked, 9).tokens == ()
    assert LookupDrafter(Acceptance()).propose(asked, 9).tokens == ()


def test_an_answer_is_not_followed_into_the_next_one() -> None:
    recent = RecentAnswers()
    recent.add([1, 2, 3])
    recent.add([4, 5, 6])
    assert LookupDrafter(Acceptance(), lambda: recent).propose([9, 1, 2], 5).tokens == (3,)
    assert LookupDrafter(Acceptance(), lambda: recent).propose([9, 2, 3], 5).tokens == ()


def test_what_is_kept_is_bounded() -> None:
    memory = AnswerMemory()
    recent = memory.of("long")
    for _ in range(5):
        recent.add(list(range(MOST_TOKENS)))
    assert sum(map(len, recent.indexes())) <= MOST_TOKENS + 2
    for number in range(MOST_NAMESPACES):
        memory.of(str(number))
    assert memory.of("long") is not recent


@given(st.lists(st.integers(0, 3), min_size=12, max_size=60), st.integers(2, 40), st.integers(0, 99))
def test_chances_are_those_of_each_guess(text: list[int], length: int, seed: int) -> None:
    """As counted for each guess alone, by how sure it is."""
    index, known = NgramIndex(), Acceptance(Acceptance())
    index.extend(text)
    rng = np.random.default_rng(seed)
    for level in rng.choice(known.levels, 40):
        known.count(int(level), right=bool(rng.integers(2)))
    expected, chance = [], 1.0
    for i, agreement in enumerate(agreements((index,), text)):
        chance *= known.chance(64 * agreement + min(length + i, LONGEST))
        if chance < 0.02:
            break
        expected.append(chance)
    assert chances_of((index,), text, length, known.levels, known.chances(), 0.02) == expected


def test_each_level_has_a_chance() -> None:
    for levels, chances in (([], []), ([0, 64], [0.5]), ([0], [0.5, 0.6])):
        with pytest.raises(ValueError, match="a chance for each"):
            chances_of((), [1, 2, 3], 2, levels, chances, 0.02)
