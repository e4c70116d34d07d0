"""What drafts may lose: no text, however it misleads them, costs an answer more than its first tokens and its share."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from ollama_engine.runner.schedule.draft_budget import FIRST, FIRST_OF_ALL, KEPT, MOST, MOST_OF_ALL, SHARE, DraftBudget
from ollama_engine.runner.schedule.step_costs import StepPrices

PLAIN = 4.0


def prices_of(n_answers: int, row: float, planning: float) -> StepPrices:
    return StepPrices(n_answers, PLAIN, lambda rows: PLAIN + planning + row * (rows - n_answers))


@given(
    st.integers(1, 4), st.floats(0.01, 8), st.floats(0, 2),
    st.lists(st.lists(st.tuples(st.integers(1, 20), st.integers(0, 20)), min_size=4, max_size=4), max_size=60),
    st.floats(0, 0.5),
)  # fmt: skip
@example(4, 0.2, 0.1, 40 * [4 * [(20, 0)]], 0.0)
@example(1, 0.2, 0.1, 40 * [4 * [(20, 0)]], 0.3)
def test_no_outcome_costs_more_than_what_was_won_and_a_share(
    n_answers: int, row: float, planning: float, steps: list[list[tuple[int, int]]], guess: float
) -> None:
    """Each draft is as long as it may be, and as many of its guesses are right as chance has it.

    `guess`: the time that making one takes.
    """
    prices = prices_of(n_answers, row, planning)
    budget, keys = DraftBudget(), range(n_answers)
    budget.begin(keys)
    seconds = 0.0
    tokens = [0] * n_answers
    for step in steps:
        left = [prices.affordable(budget.left(key, prices), guess * n_answers) for key in keys]
        drafts = [min(most, asked) for most, (asked, _) in zip(left, step, strict=False)]
        budget.note_guessing({key: drafts[key] for key in keys if drafts[key]}, guess * sum(drafts) / PLAIN)
        right = [min(n, hits) for n, (_, hits) in zip(drafts, step, strict=False)]
        took = prices.drafted(n_answers + sum(drafts)) if any(drafts) else PLAIN
        if any(drafts):
            budget.note({key: (drafts[key], right[key]) for key in keys}, took / PLAIN)
        else:
            budget.note_plain()
        seconds += took + guess * sum(drafts)
        tokens = [n + 1 + hits for n, hits in zip(tokens, right, strict=True)]
    without = sum(tokens) / n_answers * PLAIN
    assert seconds <= without + (FIRST * n_answers + SHARE * len(steps) * n_answers) * PLAIN / n_answers + 1e-6


def test_an_answer_that_won_may_lose_that_again_and_no_more_than_is_saved_up() -> None:
    budget, prices = DraftBudget(), prices_of(1, 1.0, 0.0)
    budget.begin([7])
    begun = budget.most(7, prices)
    budget.note({7: (5, 5)}, 2.25)
    assert budget.most(7, prices) == begun + int(4 * (5 - 1.25))
    for _ in range(20):
        budget.note({7: (5, 5)}, 2.25)
    assert budget.most(7, prices) == 4 * MOST
    budget.begin([7, 8])
    assert budget.most(7, prices) == 4 * MOST, "another one came"
    budget.begin([8])
    budget.begin([7])
    assert budget.most(7, prices) == 4 * MOST, "it was preempted, and goes on"
    for key in range(100, 102 + KEPT):
        budget.begin([key])
    budget.begin([7])
    assert budget.most(7, prices) == int(4 * FIRST), "accounts are not kept for ever, and others have won meanwhile"


def test_guesses_that_come_true_unverified_let_an_answer_draft_again() -> None:
    budget, prices = DraftBudget(), prices_of(1, 1.0, 0.0)
    budget.begin([7])
    begun = budget.most(7, prices)
    budget.note({7: (begun, 0)}, prices.drafted(1 + begun) / PLAIN)
    assert budget.most(7, prices) == 0
    for right in (True, False, True, True, False):
        budget.note_unverified(7, right=right)
    assert budget.most(7, prices) == 1
    for _ in range(20):
        budget.note_unverified(7, right=True)
    assert budget.most(7, prices) == int(4 * budget.first), "no more than an answer begins with"
    for _ in range(20):
        budget.note_unverified(7, right=False)
    assert budget.most(7, prices) == 0
    budget.note({7: (5, 5)}, 2.25)
    won = budget.most(7, prices)
    budget.note_unverified(7, right=True)
    assert budget.most(7, prices) == won


def test_an_answer_that_begins_has_what_earlier_ones_make_of_it() -> None:
    budget = DraftBudget()
    assert budget.first == FIRST
    budget.begin([1])
    for _ in range(100):
        budget.note({1: (5, 5)}, 2.25)
    assert budget._of_all == MOST_OF_ALL
    assert budget.first == FIRST
    budget.note({1: (5, 0)}, MOST_OF_ALL - 8)
    assert budget.first < 0.5


def test_many_answers_that_all_lose_leave_nothing_for_later_ones() -> None:
    budget, prices = DraftBudget(), prices_of(1, 1.0, 0.0)
    for key in range(100):
        budget.begin([key])
        assert budget.most(key, prices) > 0 or key > FIRST_OF_ALL / 2
        assert budget.most(key, prices) == 0 or key < 2 * FIRST_OF_ALL
        while n := budget.most(key, prices):
            budget.note({key: (n, 0)}, prices.drafted(1 + n) / PLAIN)
