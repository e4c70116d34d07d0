"""RequestQueue: the requests of an engine, those that run and those that wait, and how they come, leave and give
way.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from ollama_engine.errors import ClosedError, ContextOverflowError, DeadlineError, Option
from ollama_engine.runner.observe.metrics import Outcome
from ollama_engine.runner.observe.monitor import Monitor, SlotInfo, outcome_of, slot_info
from ollama_engine.runner.prefix.cache_manager import CacheManager
from ollama_engine.runner.schedule.scheduler import Candidate, Plan, choose_victim
from ollama_engine.runner.schedule.sequence import Sequence

__all__ = ["RequestQueue"]

FAIR_EVERY = 9
"""Of as many requests that begin, one is the oldest, whatever its priority."""

SWEEP_SECONDS = 0.02
"""How often those that wait are looked through for cancelled and late ones."""


class RequestQueue:
    """Up to `parallel` requests run; they have a cache sequence each. The others wait, in the order of their turn."""

    def __init__(self, space: CacheManager, parallel: int, monitor: Monitor) -> None:
        self._cache_manager = space
        self._parallel = parallel
        self._monitor = monitor
        self.waiting: list[Sequence] = []
        self.running: dict[int, Sequence] = {}
        self._arrivals = 0
        self._admitted = 0
        self._n_ended = 0
        self._swept_at = float("-inf")

    def __iter__(self) -> Iterator[Sequence]:
        """All of them, as they are now."""
        return iter([*list(self.running.values()), *self.waiting])

    def __bool__(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def vacant(self) -> int:
        """How many more could run. Any thread may ask."""
        return self._parallel - len(self.running)

    def slots(self) -> list[SlotInfo]:
        """How they stand, the oldest first. Any thread may ask."""
        now = self._monitor.clock()
        return [slot_info(one, now) for one in sorted(self, key=_arrival)]

    def candidates(self) -> list[Candidate]:
        """What the scheduler chooses from."""
        return [found for one in self.running.values() if (found := one.candidate()) is not None]

    def check(self) -> None:
        """Raise AssertionError unless it agrees with the prefix_cache."""
        self._cache_manager.check()
        prefix_cache = self._cache_manager.prefix_cache
        live = [slot for slot in range(len(prefix_cache)) if prefix_cache.state(slot) == "live"]
        held = [one.slot for one in self.running.values()]
        assert sorted(slot for slot in held if slot is not None) == live, "running sequences and live histories"
        assert len(self.running) <= self._parallel, "sequences that run"

    # -- coming --------------------------------------------------------------------------------------------------------

    def add(self, one: Sequence) -> None:
        """A request queues: behind those of higher priority, and of the same that came before."""
        one.key = self._arrivals
        self._arrivals += 1
        self._monitor.arrived(one)
        self._queue(one)

    def _queue(self, one: Sequence) -> None:
        bisect.insort(self.waiting, one, key=_turn)

    def admit(self) -> None:
        """Those whose turn it is get a sequence, and what of their prompt is in the cache already."""
        while len(self.running) < self._parallel:
            one = self._next()
            if one is None:
                return
            now = self._monitor.clock()
            if not self._cache_manager.begin(one, now):
                if not self.running:
                    # None will ever come back by itself.
                    self.end(one, ContextOverflowError("sessions hold all sequences of the cache; close some"))
                return
            if one.cached is None:
                one.cached, one.started_at = one.submitted, now
            self.waiting.remove(one)
            self._admitted += 1
            self.running[one.key] = one
            one.follows = None  # or a chain of forks would never be freed
            self._monitor.started(one, now)

    def _next(self) -> Sequence | None:
        """Whose turn it is: by priority, but one in `FAIR_EVERY` is the one that came first."""
        ready = (one for one in self.waiting if one.ready and not self._would_give_way(one))
        if self._admitted % FAIR_EVERY == FAIR_EVERY - 1:
            return min(ready, key=_arrival, default=None)
        return next(ready, None)

    def _would_give_way(self, one: Sequence) -> bool:
        """Whether it was preempted, nobody has ended since, and there are still too few cells for it."""
        if not self.running or one.preempted_at != self._n_ended:
            return False
        return self._cache_manager.room < one.known

    def is_full(self, places: int) -> bool:
        """Whether as many calls wait, beyond those that will run at once. Who was cancelled counts nowhere."""
        if len(self.waiting) < places + self.vacant:
            return False
        running = sum(not one.channel.unwanted for one in list(self.running.values()))
        waiting = {one.call for one in list(self.waiting) if not one.channel.unwanted}
        return len(waiting) >= places + self._parallel - running

    # -- leaving -------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Those that were cancelled, or are late, end."""
        now = self._monitor.clock()
        # There may be thousands, and they have time.
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            chosen = list(self)
        else:
            chosen = list(self.running.values())
        for one in chosen:
            timeout = one.options.timeout
            if one.channel.unwanted:
                self.end(one, ClosedError("the request was cancelled, or its stream was closed, before it ended"))
            elif timeout is not None and now - one.submitted_at > timeout:
                self.end(one, DeadlineError(f"the request has not ended within its timeout of {timeout} s"))

    def end(self, one: Sequence, error: BaseException) -> None:
        """A request ends early, unless it has ended."""
        if one.ended:
            return
        self.leave(one, outcome_of(error), keep=isinstance(error, (ClosedError, DeadlineError)))
        one.channel.send(error)

    def leave(self, one: Sequence, outcome: Outcome, *, keep: bool) -> None:
        """It has ended; `keep` leaves its history to those that begin alike."""
        one.ended = True
        one.epoch += 1
        self._n_ended += 1
        one.follows = None  # or a chain of forks would never be freed
        now = self._monitor.clock()
        self._cache_manager.leave(one, now, keep=keep)
        self._monitor.left(one, outcome, now)
        # Last, so that a fault is told to it too.
        if self.running.pop(one.key, None) is None:
            self.waiting.remove(one)

    def give_up(self, error: BaseException) -> None:
        """All end, and nothing is looked after that a fault may have left in disorder: the cache goes too."""
        now = self._monitor.clock()
        for one in self:
            one.ended = True
            one.epoch += 1
            self._monitor.left(one, outcome_of(error), now)
            one.channel.send(error)
        self.running.clear()
        self.waiting.clear()

    # -- giving way ----------------------------------------------------------------------------------------------------

    def make_room(self, planned: Plan, *, computing: bool) -> bool:
        """Cells are short: evict a history, else preempt somebody where nobody else can go on. False: wait."""
        if self._cache_manager.evict():
            self._monitor.evicted()
            return True
        if (planned.scheduled and not planned.starved) or (not planned.scheduled and computing):
            return False
        candidates = self.candidates()
        victim = choose_victim(candidates, {one.key: self.running[one.key].submitted for one in candidates})
        if victim is not None:
            self.preempt(self.running[victim])
            return True
        if planned.scheduled:
            return False
        # Of those that run, at most the most senior one has cells: with them another one may go on.
        last = max((self.running[one.key] for one in candidates), key=lambda one: one.submitted)
        self.end(last, ContextOverflowError(
            "the cache is full, and nobody can give up cells: sessions hold them",
            advice=["close some", ("choose a larger ", Option("num_ctx"), " or ", Option("parallel"))]))  # fmt: skip
        return True

    def preempt(self, one: Sequence) -> None:
        """Take a running sequence's cells; it waits again, and is computed anew."""
        self._cache_manager.leave(one, self._monitor.clock(), keep=False)
        del self.running[one.key]
        one.withdraw()
        one.preemptions += 1
        one.preempted_at = self._n_ended
        self._queue(one)
        self._monitor.preempted(one)


def _arrival(one: Sequence) -> int:
    return one.key


def _turn(one: Sequence) -> tuple[int, int]:
    return (-one.options.priority, one.key)
