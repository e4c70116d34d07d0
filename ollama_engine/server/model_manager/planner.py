"""Planner: what to load, wake, unload and share next. Pure: it sees numbers, and neither models nor a clock.

Requests wait in the order of their arrival. One that fits a loaded model gets it at once, unless an earlier one waits
for that model to be unloaded; so nobody starves. Loads and wakings come one after another, since only between them is
known how much memory is free. Models that are unloaded sleep where they may, and wake up with what they held.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from ollama_engine.server.model_manager.runner_options import RunnerOptions

__all__ = ["Bytes", "Grant", "LoadPlan", "ModelLimits", "ModelState", "Need", "Resident", "Waiter", "plan"]

ModelState = Literal["loading", "ready", "falling asleep", "sleeping", "waking", "unloading"]

Bytes = Mapping[str, int]
"""Bytes for each device, by its name."""


@dataclass(frozen=True, slots=True)
class Resident:
    """A model that has memory, or takes or frees it, or sleeps.

    Attributes:
        number: of this load; no two have the same.
        key: which model.
        state: whether it can be used.
        options: that it was loaded with.
        context_length: tokens that it was trained for; None while that is not known.
        holds: requests that use it.
        last_used: when the latest of them came or ended.
        expires_at: when it is unloaded if nobody uses it then; of a sleeping one, when it is closed.
        memory: what it takes while it is awake, its mapped file included.
        may_sleep: whether it sleeps when it is unloaded, or is closed.
    """

    number: int
    key: str
    state: ModelState
    options: RunnerOptions
    context_length: int | None = None
    holds: int = 0
    last_used: float = 0.0
    expires_at: float = 0.0
    memory: Bytes = field(default_factory=dict)
    may_sleep: bool = False


@dataclass(frozen=True, slots=True)
class Need:
    """Memory that a model will take.

    Attributes:
        memory: bytes on each device, its mapped file and estimates included.
        least: of these, what it cannot be loaded without.
        alone: no other model may stay, since there was too little memory with others.
        room: bytes that devices of other machines have for models of this server, as they said when it was measured:
            to ask them takes too long for a plan.
    """

    memory: Bytes = field(default_factory=dict)
    least: Bytes = field(default_factory=dict)
    alone: bool = False
    room: Bytes = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Waiter:
    """A request that waits for a model. `need` is None until it has been measured."""

    number: int
    key: str
    options: RunnerOptions
    need: Need | None = None


@dataclass(frozen=True, slots=True)
class ModelLimits:
    """Limits of the machine.

    Attributes:
        models: how many may be loaded at once.
        free: bytes that models may take beyond those that are loaded, whose mapped files stay in memory.
        sleepers: how many may sleep at once.
    """

    models: int
    free: Bytes = field(default_factory=dict)
    sleepers: int = 0


@dataclass(frozen=True, slots=True)
class Grant:
    """A request gets a loaded model."""

    waiter: int
    resident: int


@dataclass(slots=True)
class LoadPlan:
    """The steps to take now.

    `load` and `measure` are numbers of waiters, `sleep` and `unload` of residents without holds, `wake` of a sleeping
    one. Those to unload are closed.
    """

    grants: list[Grant] = field(default_factory=list)
    sleep: list[int] = field(default_factory=list)
    unload: list[int] = field(default_factory=list)
    wake: int | None = None
    load: int | None = None
    measure: int | None = None


def plan(residents: Sequence[Resident], waiters: Sequence[Waiter], limits: ModelLimits, now: float) -> LoadPlan:
    """The next steps for these requests, the earliest first."""
    return _Planner(residents, limits).plan(waiters, now)


class _Planner:
    def __init__(self, residents: Sequence[Resident], limits: ModelLimits) -> None:
        self._residents = residents
        self._awake = [resident for resident in residents if resident.state != "sleeping"]
        self._by_key = {resident.key: resident for resident in residents}
        self._limits = limits
        self._granted: dict[int, int] = {}
        self._retiring: dict[int, Resident] = {}
        self._closing: set[int] = set()
        """Those of them that may not sleep."""
        self._result = LoadPlan()
        # A request that needs a load waits for loads and unloads that go on, and for earlier requests that need one.
        self._blocked = any(resident.state != "ready" for resident in self._awake)

    def plan(self, waiters: Sequence[Waiter], now: float) -> LoadPlan:
        for waiter in waiters:
            resident = self._by_key.get(waiter.key)
            if resident is None:
                self._make_room(waiter, None)
            elif resident.state in ("ready", "sleeping") and resident.number not in self._retiring:
                if not waiter.options.fits(resident.options, resident.context_length):
                    self._retire([resident], close=True)
                elif resident.state == "ready":
                    self._grant(waiter, resident)
                else:
                    self._make_room(waiter, resident)
        self._retire([resident for resident in self._awake if resident.state == "ready" and resident.expires_at <= now])
        self._retire(self._overslept({waiter.key for waiter in waiters}, now))
        for number, retiring in self._retiring.items():
            if not self._holds(retiring):
                sleeps = retiring.may_sleep and retiring.state == "ready" and number not in self._closing
                (self._result.sleep if sleeps else self._result.unload).append(number)
        if self._result.unload or self._result.sleep:
            self._result.load = self._result.wake = None  # what is free will be known when they have left
        return self._result

    def _retire(self, residents: Sequence[Resident], *, close: bool = False) -> None:
        for resident in residents:
            self._retiring.setdefault(resident.number, resident)
            if close:
                self._closing.add(resident.number)

    def _overslept(self, needed: set[str], now: float) -> list[Resident]:
        """Sleeping models whose time is over, and those used least recently of too many, but `needed` ones."""
        asleep = [resident for resident in self._residents if resident.state == "sleeping"]
        asleep.sort(key=lambda resident: -resident.last_used)
        return [
            resident
            for place, resident in enumerate(asleep)
            if resident.expires_at <= now or (place >= self._limits.sleepers and resident.key not in needed)
        ]

    def _grant(self, waiter: Waiter, resident: Resident) -> None:
        self._granted[resident.number] = self._granted.get(resident.number, 0) + 1
        self._result.grants.append(Grant(waiter.number, resident.number))

    def _holds(self, resident: Resident) -> int:
        return resident.holds + self._granted.get(resident.number, 0)

    def _make_room(self, waiter: Waiter, asleep: Resident | None) -> None:
        """Load this waiter's model, or wake it up, or retire others for it."""
        if self._blocked:
            return
        self._blocked = True
        need = waiter.need if asleep is None else Need(asleep.memory, asleep.memory)
        if need is None:
            self._result.measure = waiter.number
        elif victims := self._victims(need):
            self._retire(victims, close=need.alone)
        elif asleep is None:
            self._result.load = waiter.number
        else:
            self._result.wake = asleep.number

    def _victims(self, need: Need) -> Sequence[Resident]:
        """The fewest models to unload, least recently used first, and idle ones before others."""
        if need.alone:
            return self._residents
        order = sorted(self._awake, key=lambda resident: (self._holds(resident) > 0, resident.last_used))
        fits = self._fits(need.memory, need.room)
        if not self._fits(need.least, need.room)([]):
            # It does not fit even into an empty machine. Loading it says so; no other model is unloaded for it.
            fits = self._fits({}, {})
        chosen: list[Resident] = []
        for resident in order:
            left = [other for other in order if other not in chosen]
            if not left or fits(left):
                break
            chosen.append(resident)
        for resident in reversed(chosen[:-1]):
            fewer = [other for other in chosen if other is not resident]
            if fits([other for other in order if other not in fewer]):
                chosen = fewer
        return chosen

    def _fits(self, memory: Bytes, room: Bytes) -> Callable[[Sequence[Resident]], bool]:
        """Whether a model of these bytes can be loaded when only some residents are left."""
        total = {
            device: free + sum(resident.memory.get(device, 0) for resident in self._awake)
            for device, free in self._limits.free.items()
        } | dict(room)

        def fits(left: Sequence[Resident]) -> bool:
            taken = {device: sum(other.memory.get(device, 0) for other in left) for device in total}
            return len(left) < self._limits.models and all(
                nbytes <= total.get(device, nbytes + taken.get(device, 0)) - taken.get(device, 0)
                for device, nbytes in memory.items()
            )

        return fits
