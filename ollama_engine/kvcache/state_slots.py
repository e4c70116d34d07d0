"""Slots of recurrent states: which state of which sequence lies where, and which is given up next. No tensors.

A state is what a sequence's tokens below a position have left behind. A step reads one state and writes others. So a
state can be shared by sequences without a copy, kept as a checkpoint by not giving up its slot, and found again where a
step was not computed.

    sequence 3   position   0     64         96    97
                 state      none  slot 5     -     slot 2     64 is a checkpoint; decoding goes on from 97

A step that is not taken back once it is launched may change states in place, if nothing else wants them: none is
shared or a checkpoint. Before the launch only the position of a slot's state is another, and it is put back where the
step is never launched.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple


class Run(NamedTuple):
    """The tokens of one sequence in a step, and the positions between them whose states are kept."""

    first: int
    end: int
    checkpoints: Collection[int] = ()
    returns: Collection[int] = ()
    """Where the sequence may go back to, until its next step."""


@dataclass(slots=True)
class _Slot:
    position: int = 0
    owners: set[int] = field(default_factory=set)
    kept: bool = False
    """Whether it is a checkpoint: it stays when its sequence goes on."""
    used_at: int = 0


class _Renamed(NamedTuple):
    """A state that the step to be launched changes in place, and the end of what it becomes."""

    slot: int
    before: _Slot
    end: int


class StateSlots:
    """`n_slots` slots, each with one state of one or more sequences.

    Of a sequence that is held, the latest state stays, and one before it: the first that its step may go back to, or
    what the step went on from, unless it was changed in place. Any other is given up, least recently used first, where
    a step finds no free slot.
    """

    def __init__(self, n_slots: int) -> None:
        if n_slots < 2:
            raise ValueError(f"a step reads one state and writes another: there are at least 2 slots, got {n_slots}")
        self.n_slots = n_slots
        self._slots = [_Slot() for _ in range(n_slots)]
        self._free = list(range(n_slots - 1, -1, -1))
        self._states: dict[int, dict[int, int]] = {}
        """{sequence: {position: slot}}, ascending."""
        self._held: set[int] = set()
        self._back: dict[int, int] = {}
        """{sequence: position}: where a sequence goes on if its latest step is taken back."""
        self._renamed: dict[int, _Renamed] = {}
        """{sequence: state} of the step to be launched."""
        self._clock = 0

    # -- queries -------------------------------------------------------------------------------------------------------

    def of(self, sequence: int) -> dict[int, int]:
        """{position: slot} of a sequence's states, ascending."""
        return dict(self._states.get(sequence, {}))

    def state(self, sequence: int, position: int) -> object:
        """Which state a sequence has at a position: the same object as long as no other is written there, or None."""
        slot = self._states.get(sequence, {}).get(position)
        return None if slot is None else self._slots[slot]

    def latest(self, sequence: int, most: int) -> int:
        """The highest position up to `most` with a state; 0, where a sequence begins, without one."""
        return max((position for position in self._states.get(sequence, {}) if position <= most), default=0)

    def read(self, sequence: int, position: int) -> int | None:
        """The slot of the state at `position`; None at 0. Raises ValueError where it is not there."""
        if position == 0:
            return None
        slot = self._states.get(sequence, {}).get(position)
        if slot is None:
            raise ValueError(f"sequence {sequence} cannot go on at position {position}: its state there is not kept")
        return slot

    def available(self, firsts: Mapping[int, int]) -> int:
        """Number of slots for new states, in a step that goes on from these {sequence: position}."""
        return self.n_slots - len(self._needed(firsts))

    def changeable(self, runs: Mapping[int, Run]) -> dict[int, int] | None:
        """{sequence: slot} where nothing else wants the states that a step goes on from, else None.

        A step may change them in place, and then needs no other slots.
        """
        slots: dict[int, int] = {}
        for sequence, run in runs.items():
            slot = self._states.get(sequence, {}).get(run.first)
            if slot is None or _inner(run) or self._slots[slot].kept or self._slots[slot].owners != {sequence}:
                return None
            slots[sequence] = slot
        return slots

    def _needed(self, firsts: Mapping[int, int]) -> set[int]:
        """Slots that such a step may not give up."""
        needed = {slot for slot in (self.read(*first) for first in firsts.items()) if slot is not None}
        for sequence in self._held:
            states = self._states.get(sequence)
            if states and sequence not in firsts:
                back = self._back.get(sequence, 0)
                needed.update(states[position] for position in (back, max(states)) if position in states)
        return needed

    @property
    def n_used(self) -> int:
        """Number of slots that hold a state."""
        return self.n_slots - len(self._free)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def place(self, runs: Mapping[int, Run], *, in_place: bool = False) -> dict[int, dict[int, int]]:
        """Find slots for a step, {sequence: {position: slot}} of the states to write, ascending.

        The state at each `end` always gets a slot, the others as far as there are any. All returns of a sequence but
        the first take free slots only: no checkpoint makes way for them. The caller has asked `available` for as many
        as sequences, or `changeable`. `in_place`: no sequence takes the step back once it is launched.
        """
        self._renamed.clear()
        firsts = {sequence: run.first for sequence, run in runs.items()}
        for sequence, first in firsts.items():
            self._pass_on(sequence, first)
        if in_place and (slots := self.changeable(runs)) is not None:
            return self._change(runs, slots)
        inner = {sequence: run for sequence, run in runs.items() if run.checkpoints or run.returns}
        first_returns = (run._replace(returns=sorted(run.returns)[:1]) for run in inner.values())
        n_wanted = len(runs) + sum(len(_inner(run)) for run in first_returns)
        if n_wanted > len(self._free):
            self._evict(n_wanted - len(self._free), firsts)
        spare = len(self._free) - len(runs)
        assert spare >= 0, "the caller asked for room first"
        chosen = _chosen(inner, spare) if inner else {}
        made: dict[int, dict[int, int]] = {}
        for sequence, run in runs.items():
            kept = sorted(chosen.get(sequence, ()))
            self._back[sequence] = next((at for at in kept if at in run.returns), run.first)
            made[sequence] = {
                position: self._take(sequence, position, kept=position in run.checkpoints)
                for position in (*kept, run.end)
            }
        return made

    def _change(self, runs: Mapping[int, Run], slots: Mapping[int, int]) -> dict[int, dict[int, int]]:
        """`place` for a step that changes the states in these slots in place."""
        for sequence, slot in slots.items():
            run = runs[sequence]
            self._renamed[sequence] = _Renamed(slot, self._slots[slot], run.end)
            self._clock += 1
            self._slots[slot] = _Slot(run.end, {sequence}, run.end in run.checkpoints, self._clock)
            del self._states[sequence][run.first]
            self._states[sequence][run.end] = slot
            self._back.pop(sequence, None)
        return {sequence: {run.end: slots[sequence]} for sequence, run in runs.items()}

    def launched(self) -> Collection[int]:
        """The step that was placed last is computed from now on. The slots that it changes in place."""
        changed = {at.slot for key, at in self._renamed.items() if self._states.get(key, {}).get(at.end) == at.slot}
        self._renamed.clear()
        return changed

    def _name_back(self, sequence: int, most: int) -> None:
        """The sequence's inputs end at `most`: a state that was to be changed in place for a later one stays."""
        renamed = self._renamed.get(sequence)
        if renamed is None or most >= renamed.end:
            return
        del self._renamed[sequence]
        if self._states.get(sequence, {}).get(renamed.end) == renamed.slot:
            self._slots[renamed.slot] = renamed.before
            del self._states[sequence][renamed.end]
            self._states[sequence][renamed.before.position] = renamed.slot

    def _pass_on(self, sequence: int, first: int) -> None:
        """Give up the states before and behind `first` that are no checkpoints."""
        states = self._states.get(sequence, {})
        for position in [p for p, slot in states.items() if p > first or (p < first and not self._slots[slot].kept)]:
            self._drop(sequence, position)

    def _evict(self, n: int, firsts: Mapping[int, int]) -> None:
        needed = self._needed(firsts)
        evictable = [slot for slot, state in enumerate(self._slots) if state.owners and slot not in needed]
        for slot in sorted(evictable, key=lambda slot: self._slots[slot].used_at)[:n]:
            position = self._slots[slot].position
            for sequence in list(self._slots[slot].owners):
                self._drop(sequence, position)

    def _take(self, sequence: int, position: int, *, kept: bool) -> int:
        slot = self._free.pop()
        self._clock += 1
        self._slots[slot] = _Slot(position, {sequence}, kept, self._clock)
        self._states.setdefault(sequence, {})[position] = slot
        return slot

    def _drop(self, sequence: int, position: int) -> None:
        states = self._states[sequence]
        slot = states.pop(position)
        if not states:
            del self._states[sequence]
        owners = self._slots[slot].owners
        owners.discard(sequence)
        if not owners:
            self._slots[slot] = _Slot()
            self._free.append(slot)

    def restore(self, sequence: int, position: int) -> int:
        """A slot for a state that is put back into an empty sequence. The caller has asked `available`."""
        if not self._free:
            self._evict(1, {})
        return self._take(sequence, position, kept=True)

    # -- sequences -----------------------------------------------------------------------------------------------------

    def share(self, source: int, target: int, end: int) -> None:
        """Share the states of `source` up to position `end` with `target`, which is empty."""
        if target in self._states:
            raise ValueError(f"sequence {target} has states already")
        self._clock += 1
        for position, slot in self.of(source).items():
            if position <= end:
                self._states.setdefault(target, {})[position] = slot
                self._slots[slot].owners.add(target)
                self._slots[slot].used_at = self._clock

    def remove(self, sequence: int, begin: int = 0) -> None:
        """Forget the states that depend on the token at `begin` or a later one."""
        self._name_back(sequence, begin)
        for position in [p for p in self._states.get(sequence, {}) if p > begin]:
            self._drop(sequence, position)

    def hold(self, sequence: int) -> None:
        """Keep the sequence's latest state until `release`. Its states now become checkpoints."""
        self._held.add(sequence)
        self._back.pop(sequence, None)
        self._clock += 1
        for slot in self._states.get(sequence, {}).values():
            self._slots[slot].kept, self._slots[slot].used_at = True, self._clock

    def release(self, sequence: int, length: int) -> None:
        """The sequence does not go on for now: its checkpoints and its latest state up to `length` may be given up.

        What was computed behind that is not wanted.
        """
        self._name_back(sequence, length)
        self._held.discard(sequence)
        self._back.pop(sequence, None)
        states, last = self._states.get(sequence, {}), self.latest(sequence, length)
        for position in [p for p, slot in states.items() if p != last and not self._slots[slot].kept]:
            self._drop(sequence, position)

    def held(self) -> Collection[int]:
        """Sequences that are held."""
        return frozenset(self._held)

    def check(self) -> None:
        """Raise AssertionError unless the bookkeeping is consistent; for tests and debugging."""
        owned: dict[int, set[int]] = {}
        for sequence, states in self._states.items():
            assert states, "a sequence without states is not listed"
            assert list(states) == sorted(states), "states are listed by position"
            for position, slot in states.items():
                assert position > 0, "a sequence begins without a state"
                assert self._slots[slot].position == position, "a state has one position"
                owned.setdefault(slot, set()).add(sequence)
        assert {i: s.owners for i, s in enumerate(self._slots) if s.owners} == owned, "owners"
        assert sorted(self._free) == sorted(set(range(self.n_slots)) - set(owned)), "free slots"


def _inner(run: Run) -> set[int]:
    """The positions before the end whose states are kept."""
    return {position for position in (*run.checkpoints, *run.returns) if position < run.end}


def _chosen(runs: Mapping[int, Run], most: int) -> dict[int, set[int]]:
    """Up to `most` positions before the ends: the first of each to go back to, the last checkpoints, other returns."""
    returns = [
        (i, sequence, at) for sequence, run in runs.items() for i, at in enumerate(sorted(run.returns)) if at < run.end
    ]
    wanted = [(sequence, at) for i, sequence, at in returns if i == 0]
    for sequence, run in runs.items():
        wanted += [(sequence, at) for at in sorted(_inner(run) - set(run.returns), reverse=True)]
    wanted += [(sequence, at) for i, sequence, at in sorted(returns) if i > 0]
    chosen: dict[int, set[int]] = {sequence: set() for sequence in runs}
    for sequence, at in wanted[:most]:
        chosen[sequence].add(at)
    return chosen
