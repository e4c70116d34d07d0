"""StateSlots: what is kept, what is given up, and in which order."""

from __future__ import annotations

import pytest

from ollama_engine.kvcache.state_slots import Run, StateSlots


def step(slots: StateSlots, sequence: int, first: int, end: int, *checkpoints: int) -> None:
    slots.place({sequence: Run(first, end, checkpoints)})
    slots.check()


def positions(slots: StateSlots, *sequences: int) -> list[list[int]]:
    return [list(slots.of(sequence)) for sequence in sequences]


def test_the_state_before_stays_until_the_next_step() -> None:
    slots = StateSlots(4)
    step(slots, 0, 0, 5)
    step(slots, 0, 5, 6)
    assert positions(slots, 0) == [[5, 6]]
    step(slots, 0, 6, 7)
    assert positions(slots, 0) == [[6, 7]]
    slots.remove(0, 6)
    assert positions(slots, 0) == [[6]], "a step that was not computed"
    step(slots, 0, 6, 9)
    assert positions(slots, 0) == [[6, 9]]


def test_a_step_reads_and_writes_different_slots() -> None:
    slots = StateSlots(2)
    for position in range(6):
        slots_before = slots.of(0)
        step(slots, 0, position, position + 1)
        assert slots.of(0)[position + 1] != slots_before.get(position)


def test_checkpoints_stay_while_there_is_room() -> None:
    slots = StateSlots(4)
    step(slots, 0, 0, 8, 3, 8)
    for position in range(8, 12):
        step(slots, 0, position, position + 1)
    assert positions(slots, 0) == [[3, 8, 11, 12]]
    step(slots, 1, 0, 2)
    assert positions(slots, 0, 1) == [[8, 11, 12], [2]], "the least recently used one goes"


def test_the_last_checkpoints_of_a_step_are_kept_where_not_all_fit() -> None:
    slots = StateSlots(3)
    step(slots, 0, 0, 9, 2, 4, 6, 8)
    assert positions(slots, 0) == [[6, 8, 9]]


def test_what_a_running_sequence_goes_on_from_is_never_given_up() -> None:
    slots = StateSlots(3)
    for sequence in (0, 1):
        slots.hold(sequence)
        step(slots, sequence, 0, 4)
    step(slots, 0, 4, 5)
    assert slots.available({1: 4}) == 0, "a step of the first may be taken back"
    slots.remove(0, 4)
    step(slots, 1, 4, 5)
    assert positions(slots, 0, 1) == [[4], [4, 5]]
    assert slots.available({2: 0}) == 0
    slots.release(0, 5)
    assert slots.available({2: 0}) == 1


def test_where_a_draft_begins_is_kept_until_the_next_step() -> None:
    slots = StateSlots(8)
    slots.hold(0)
    step(slots, 0, 0, 4)
    for first in (4, 10):
        slots.place({0: Run(first, first + 6, (), (first + 1,))})
        assert positions(slots, 0) == [[first, first + 1, first + 6]]
        slots.check()
    step(slots, 1, 0, 9, 1, 2, 3, 4, 5, 6)
    assert positions(slots, 0) == [[11, 16]], "the draft of a step may be wrong while others compute"
    slots.remove(0, 12)
    step(slots, 0, 11, 12)
    assert positions(slots, 0) == [[11, 12]]


@pytest.mark.parametrize("n_slots", [3, 4, 5])
def test_where_a_draft_begins_is_kept_before_checkpoints(n_slots: int) -> None:
    """Of a draft that lies across a checkpoint: in its own step, and while others look for slots."""
    slots = StateSlots(n_slots)
    slots.hold(0)
    step(slots, 0, 0, 4)
    slots.place({0: Run(4, 10, (7,), (5,))})
    slots.check()
    assert 5 in slots.of(0)
    step(slots, 1, 0, 9, 2, 3)
    assert {5, 10} <= set(slots.of(0))
    slots.remove(0, 5)
    step(slots, 0, 5, 6)
    assert positions(slots, 0) == [[5, 6]]


def test_no_checkpoint_makes_way_for_further_returns_of_drafts() -> None:
    """They take free slots, the first ones of all drafts before the second ones."""
    slots = StateSlots(9)
    for sequence in (7, 8):
        step(slots, sequence, 0, 4)
        slots.release(sequence, 4)
    for sequence in (0, 1):
        slots.hold(sequence)
        step(slots, sequence, 0, 4)
    slots.place({0: Run(4, 9, (), (8, 5, 6, 7)), 1: Run(4, 9, (), (5, 6, 7, 8))})
    slots.check()
    assert positions(slots, 7, 8, 0, 1) == [[4], [4], [4, 5, 6, 9], [4, 5, 9]]


def test_checkpoints_of_one_sequence_leave_room_for_drafts_of_another() -> None:
    slots = StateSlots(6)
    for sequence in (0, 1):
        slots.hold(sequence)
        step(slots, sequence, 0, 4)
    made = slots.place({0: Run(4, 9, (6, 7)), 1: Run(4, 10, (), (5,))})
    assert [list(states) for states in made.values()] == [[7, 9], [5, 10]]
    slots.check()


def test_a_shared_state_is_one_slot() -> None:
    slots = StateSlots(5)
    step(slots, 0, 0, 8, 4)
    slots.share(0, 1, 6)
    assert positions(slots, 0, 1) == [[4, 8], [4]]
    assert slots.n_used == 2
    slots.remove(0)
    assert positions(slots, 0, 1) == [[], [4]]
    with pytest.raises(ValueError, match="has states already"):
        slots.share(1, 1, 4)
    slots.remove(1)
    assert slots.n_used == 0
    slots.check()


def test_what_is_used_again_stays_longest() -> None:
    slots = StateSlots(4)
    for sequence in range(3):
        step(slots, sequence, 0, 4)
        slots.release(sequence, 4)
    slots.share(0, 5, 4)
    step(slots, 6, 0, 2, 1)
    assert positions(slots, 0, 1, 2, 5) == [[4], [], [4], [4]]


def test_what_is_kept_of_a_sequence_that_ends_within_a_step_is_its_end() -> None:
    """Not the state behind what was computed beyond it, nor those before it that are no checkpoints."""
    for length, kept in ((10, [4, 9]), (7, [4, 7]), (5, [4, 5])):
        slots = StateSlots(8)
        slots.hold(0)
        step(slots, 0, 0, 5, 4)
        slots.place({0: Run(5, 9, (), (6, 7, 8))})
        slots.release(0, length)
        assert positions(slots, 0) == [kept]
        slots.check()


def test_a_sequence_that_is_taken_up_again_keeps_its_end() -> None:
    slots = StateSlots(6)
    step(slots, 0, 0, 4)
    step(slots, 0, 4, 5)
    slots.release(0, 5)
    assert positions(slots, 0) == [[5]]
    slots.hold(0)
    for position in range(5, 9):
        step(slots, 0, position, position + 1)
    assert positions(slots, 0) == [[5, 8, 9]]


def change(slots: StateSlots, sequence: int, first: int, *kept: int, returns: tuple[int, ...] = ()) -> bool:
    """Place a step of one token that may change its state in place; whether it does."""
    before, state = slots.of(sequence).get(first), slots.state(sequence, first)
    made = slots.place({sequence: Run(first, first + 1, kept, returns)}, in_place=True)
    slots.check()
    assert slots.state(sequence, first + 1) is not state, "whoever reads the old state sees that it is given up"
    return made[sequence][first + 1] == before


def in_slots(*runs: tuple[int, int, tuple[int, ...]]) -> StateSlots:
    """Sequences that are held, each after a step (sequence, end, checkpoints)."""
    slots = StateSlots(6)
    for sequence, end, kept in runs:
        slots.hold(sequence)
        step(slots, sequence, 0, end, *kept)
    return slots


def test_a_state_that_nothing_else_wants_is_changed_in_place() -> None:
    slots = in_slots((0, 8, (4,)), (1, 5, ()))
    assert change(slots, 0, 8)
    assert positions(slots, 0, 1) == [[4, 9], [5]]
    slots.launched()
    assert change(slots, 0, 9, 10)
    slots.launched()
    assert not change(slots, 0, 10), "it is a checkpoint now"
    assert positions(slots, 0) == [[4, 10, 11]]


def test_states_of_several_sequences_are_changed_in_place_together() -> None:
    runs = {0: Run(8, 9), 1: Run(5, 6, (6,))}
    slots = in_slots((0, 8, ()), (1, 5, ()))
    made = slots.place(runs, in_place=True)
    assert made == {0: {9: slots.of(0)[9]}, 1: {6: slots.of(1)[6]}}
    slots.release(0, 8)
    slots.check()
    assert list(slots.launched()) == [slots.of(1)[6]], "the other has its old name"
    assert positions(slots, 0, 1) == [[8], [6]]
    slots = in_slots((0, 8, ()), (1, 5, (5,)))
    before = slots.of(0)[8], slots.of(1)[5]
    made = slots.place(runs, in_place=True)
    assert not {made[0][9], made[1][6]} & set(before), "all or none"
    assert positions(slots, 0, 1) == [[8, 9], [5, 6]]


def test_what_something_else_wants_is_not_changed_in_place() -> None:
    slots = in_slots((0, 8, (8,)))
    assert not change(slots, 0, 8), "a checkpoint"
    slots = in_slots((0, 8, ()))
    slots.share(0, 1, 8)
    assert not change(slots, 0, 8), "another sequence's state, too"
    assert positions(slots, 0, 1) == [[8, 9], [8]]
    slots = in_slots((0, 8, ()))
    slots.hold(0)
    assert not change(slots, 0, 8), "a request begins with it, and later ones may"
    slots = in_slots((0, 8, ()))
    made = slots.place({0: Run(8, 12, (), (9,))}, in_place=True)
    assert len({*made[0].values(), slots.of(0)[8]}) == 3, "a draft goes back"
    assert not change(in_slots(), 0, 0), "a sequence begins without a state"


@pytest.mark.parametrize("ways", [("remove",), ("release",), ("release", "remove")], ids=" ".join)
def test_a_state_has_its_name_again_where_a_step_was_not_launched(ways: tuple[str, ...]) -> None:
    slots = in_slots((0, 8, (4,)))
    state, slot = slots.state(0, 8), slots.of(0)[8]
    assert change(slots, 0, 8)
    for way in ways:
        getattr(slots, way)(0, 8)
        slots.check()
        assert (slots.of(0)[8], slots.state(0, 8) is state) == (slot, True), "the same state to whoever reads it"
        assert positions(slots, 0) == [[4, 8]]
    change(slots, 0, 8)
    slots.remove(0, 6)
    assert positions(slots, 0) == [[4]]


def test_a_state_that_was_changed_is_not_found_again() -> None:
    slots = in_slots((0, 8, (4,)))
    change(slots, 0, 8)
    slots.launched()
    slots.remove(0, 8)
    slots.check()
    assert positions(slots, 0) == [[4]]
    step(slots, 0, 4, 9)
    change(slots, 0, 9)
    slots.launched()
    slots.release(0, 10)
    assert positions(slots, 0) == [[4, 10]]


def test_a_slot_that_went_to_another_sequence_gets_no_old_name() -> None:
    slots = StateSlots(2)
    step(slots, 0, 0, 8)
    change(slots, 0, 8)
    step(slots, 1, 0, 3, 2)
    slots.remove(0, 8)
    slots.check()
    assert positions(slots, 0, 1) == [[], [2, 3]]


def test_what_is_not_there_cannot_be_read() -> None:
    slots = StateSlots(4)
    step(slots, 0, 0, 4)
    assert (slots.latest(0, 9), slots.latest(0, 4), slots.latest(0, 3), slots.latest(1, 3)) == (4, 4, 0, 0)
    assert slots.read(0, 0) is None
    for sequence, position in ((0, 3), (1, 4)):
        with pytest.raises(ValueError, match="is not kept"):
            slots.read(sequence, position)
    with pytest.raises(ValueError, match="at least 2 slots"):
        StateSlots(1)
