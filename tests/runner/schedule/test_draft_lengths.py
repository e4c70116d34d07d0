"""How far drafts are verified: what gives the most tokens a second, by every choice that there is."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.runner.schedule import draft_lengths as module
from ollama_engine.runner.schedule.draft_lengths import ROWS, draft_lengths, least_speed
from ollama_engine.runner.schedule.step_costs import FORGET_DRAFTED, RECENT, ROW, StepCosts, StepPrices


def falling(chances: list[float]) -> list[float]:
    return list(itertools.accumulate(chances, lambda before, chance: before * chance))


CHANCES = st.lists(st.floats(0.1, 1), max_size=4).map(falling)


@given(st.lists(CHANCES, max_size=3), st.integers(1, 5), st.floats(0, 1), st.floats(0, 0.1))
def test_no_other_choice_gives_more_tokens_a_second(
    drafts: list[list[float]], n_rows: int, slope: float, curve: float
) -> None:
    def seconds(rows: int) -> float:
        return 1 + slope * rows + curve * rows * rows

    n_rows = max(n_rows, len(drafts))
    chances = dict(enumerate(drafts))
    found = draft_lengths(StepPrices(n_rows, seconds(n_rows), seconds), chances, 64)

    def speed(lengths: tuple[int, ...]) -> float:
        tokens = n_rows + sum(sum(drafts[key][:length]) for key, length in enumerate(lengths))
        return tokens / seconds(n_rows + sum(lengths))

    choices = itertools.product(*(range(len(draft) + 1) for draft in drafts))
    best = max(speed(lengths) for lengths in choices if not any(lengths) or n_rows + sum(lengths) in ROWS)
    taken = speed(tuple(found.get(key, 0) for key in chances))
    assert taken >= speed((0,) * len(drafts))
    assert taken > 0.999 * best or best < 1.001 * least_speed(StepPrices(n_rows, seconds(n_rows), seconds))


def test_many_callers_whose_rows_cost_their_full_price_draft_nothing() -> None:
    assert draft_lengths(StepPrices(8, 8.0, float), {key: [0.9, 0.8] for key in range(8)}, 64) == {}
    one = StepPrices(1, 1.01, lambda rows: 1 + rows / 100)
    assert draft_lengths(one, {0: [0.9, 0.8]}, 64) == {0: 2}
    assert draft_lengths(one, {0: [0.9, 0.8]}, 1) == {0: 1}
    assert StepCosts().prices(1) is None, "nothing was measured"


def costs_of(measured: Callable[[int], float], rows: list[int], times: int = 30) -> StepCosts:
    costs = StepCosts()
    for _ in range(times):
        for n in rows:
            costs.note(n, measured(n))
    return costs


def test_costs_are_what_was_measured_and_between_that_a_line() -> None:
    costs = costs_of(lambda rows: 10 + rows, [1, 5, 9])
    for rows in (1, 3, 5, 6, 9):
        assert costs.seconds(rows) == pytest.approx(10 + rows)
    assert costs.seconds(12) == pytest.approx(19 + 3 * ROW * 11)
    assert StepCosts().seconds(1) is None


def test_costs_follow_a_context_that_grows() -> None:
    costs = costs_of(lambda rows: 10 + rows, [1, 5])
    for step in range(200):
        costs.note(1, 11 + step / 10)
    assert costs.seconds(1) == pytest.approx(31, rel=0.05)
    assert costs.seconds(5) > 20, "more rows cannot have stayed that cheap"


def test_one_slow_step_does_not_count_for_much() -> None:
    costs = costs_of(lambda rows: 10 + rows, [1, 5])
    costs.note(1, 5000)
    after = costs.seconds(1)
    assert after is not None
    assert after < 16


def test_drafts_come_back_after_a_slow_first_step_with_one() -> None:
    """As where an image of another request was encoded meanwhile, or a graph of so many rows was built first."""
    costs = costs_of(lambda rows: 10.0, [1])
    chances = {0: falling([0.95] * 16)}

    def lengths() -> dict[int, int]:
        costs.note(1, 10.0)
        prices = costs.prices(1)
        assert prices is not None
        return draft_lengths(prices, chances, 32)

    (length,) = lengths().values()
    costs.note(1 + length, 5000, drafted=True)
    assert lengths(), "one measurement is not believed that is so far off"
    for _ in range(30):
        costs.note(1 + length, 5000, drafted=True)
    assert not lengths()
    for _ in range(2 * FORGET_DRAFTED):
        costs.note(1, 10.0)
    assert lengths(), "perhaps the machine was busy then"


@pytest.mark.parametrize("slow", [0, 1])
def test_one_slow_step_with_a_draft_does_not_end_drafts(slow: int) -> None:
    """The first of all or the second, twice as long as those behind it: each text repeats itself, and no row costs."""
    costs = costs_of(lambda rows: 10.0, [1])
    with_drafts = 0
    for _ in range(FORGET_DRAFTED):
        prices = costs.prices(1)
        length = 0 if prices is None else sum(draft_lengths(prices, {0: falling([0.6])}, 32).values())
        costs.note(1 + length, 20.0 if length and with_drafts == slow else 10.0, drafted=length > 0)
        with_drafts += length > 0
    assert with_drafts > 0.9 * FORGET_DRAFTED


def test_two_slow_steps_with_drafts_end_them() -> None:
    """Rows are that dear, then: two steps are lost, and one in each time until they are tried again."""
    costs = costs_of(lambda rows: 10.0, [1])
    lengths = []
    for _ in range(8 * FORGET_DRAFTED):
        prices = costs.prices(1)
        assert prices is not None
        lengths.append(sum(draft_lengths(prices, {0: falling([0.6])}, 32).values()))
        costs.note(1 + lengths[-1], 10.0 * (1 + lengths[-1]), drafted=lengths[-1] > 0)
    assert [n > 0 for n in lengths[:3]] == [True, True, False]
    assert sum(n > 0 for n in lengths) <= 2 + 8


def test_drafts_end_where_the_first_step_without_them_was_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row costs its full price, but the first step built its graph."""
    monkeypatch.setattr(module, "SEVERAL", 1.0)
    costs, chances = costs_of(lambda rows: 5000.0, [24], times=1), {key: falling([1.0] * 4) for key in range(24)}
    lengths = []
    for _ in range(24 * RECENT + 4 * FORGET_DRAFTED):  # the first long one with drafts is tried twice
        prices = costs.prices(24)
        lengths.append(0 if prices is None else sum(draft_lengths(prices, chances, 8).values()))
        costs.note(24 + lengths[-1], 10.0 * (24 + lengths[-1]), drafted=lengths[-1] > 0)
    assert max(lengths[:RECENT]) > 0
    assert sum(length > 0 for length in lengths[-2 * FORGET_DRAFTED :]) == 1, "they are tried again now and then"


def test_what_drafts_cost_beside_their_rows_counts_for_any_number_of_rows() -> None:
    """A graph is built and nothing is planned meanwhile: measured with 12 rows, and expected with 6."""
    costs = costs_of(lambda rows: 10 + rows / 10, [4])
    for _ in range(30):
        costs.note(12, 24, drafted=True)
    assert costs.seconds(4) == pytest.approx(10.4)
    six = costs.seconds(6, drafted=True)
    assert six is not None
    assert six > 15
    costs.note(4, 10.4)
    prices = costs.prices(4)
    assert prices is not None
    assert not draft_lengths(prices, {0: [0.9, 0.8]}, 32)
