"""Core: all requests of an engine, and one step of it after the other. Single-threaded; knows no caller's thread.

A step is pipelined: while the device computes it, the one before is delivered and the next one is prepared.

    land       wait for the step, sample
    quiet      nothing computes: contexts that are full are shifted, tasks run
    take off   start the step that was prepared, with the tokens just sampled
    deliver    text, stop texts, usage
    sweep      cancelled and late requests leave
    admit      waiting requests get a cache sequence, and what of their prompt is in the cache already
    prepare    plan the next step, find its cells, build its graph

A sequence that leaves raises its epoch: what a step under way computes for it is dropped.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable
from typing import Protocol

from ollama_engine.errors import ClosedError, ContextOverflowError, DeadlineError
from ollama_engine.kvcache import Cache
from ollama_engine.runner.batching import Step, assemble
from ollama_engine.runner.executor import Executor
from ollama_engine.runner.landing import Landed, deliver, land
from ollama_engine.runner.metrics import Outcome
from ollama_engine.runner.monitor import Monitor, Record, SlotInfo, outcome_of, slot_info
from ollama_engine.runner.scheduler import Candidate, Limits, Plan, Turns, choose_victim, plan
from ollama_engine.runner.sequence import Generation, Sequence
from ollama_engine.runner.space import Space

__all__ = ["Core", "Task"]

log = logging.getLogger(__name__)

HEADROOM = 16
"""Cells that prompts leave to each decoding sequence, so that it can go on for a while."""


class Task(Protocol):
    """Something that needs the cache while nothing computes; raises nothing, but tells whoever waits for it."""

    def run(self, core: Core) -> None:
        """Do it."""

    def fail(self, error: BaseException) -> None:
        """It will not be done."""


class Core:
    """Serves sequences, up to `parallel` at once. `verify` checks the bookkeeping after every step."""

    def __init__(
        self, executor: Executor, cache: Cache, parallel: int, monitor: Monitor, *, verify: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:  # fmt: skip
        # -- collaborators --
        self.executor = executor
        self.cache = cache
        self.space = Space(cache, executor)
        self.monitor = monitor
        self.clock = clock
        # -- configuration --
        self._parallel = parallel
        self._verify = verify
        # -- requests --
        self.waiting: list[Sequence] = []
        self.running: dict[int, Sequence] = {}
        self._arrivals = 0
        self._tasks: list[Task] = []
        # -- steps --
        self._turns = Turns()
        self._next: Step | None = None
        self._flying: Step | None = None
        self._steps = 0

    # -- from outside --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.waiting or self.running or self._tasks or self._flying or self._next)

    def add(self, sequence: Sequence) -> None:
        """Queue a request: behind those of higher priority, and of the same that came before."""
        sequence.key = self._arrivals
        self._arrivals += 1
        self.monitor.arrived(sequence)
        self._queue(sequence)

    def add_task(self, task: Task) -> None:
        """Run it as soon as nothing computes."""
        self._tasks.append(task)

    def step(self) -> None:
        """Do one step. Raises what is a fault of the engine itself; nothing can be served after that."""
        with self.monitor.step() as record:
            landed = self._land(record)
            self._quiet()
            self._take_off(record)
            for one in landed:
                self._deliver(one)
            record.mark("emit")
            self._sweep()
            self._admit()
            self._prepare()
            record.mark("plan")
        self.monitor.gauges(self.cache, len(self.waiting), len(self.running))
        if self._verify or not self.busy:
            self.check()

    def fail_all(self, error: BaseException) -> None:
        """End every request, the waiting ones too, with this error; a step that computes ends first."""
        self.executor.close()
        self._flying = self._next = None
        for one in [*self.running.values(), *self.waiting]:
            self._end(one, error)
        for task in self._tasks:
            task.fail(error)
        self._tasks.clear()

    def slots(self) -> list[SlotInfo]:
        """The requests that are here, the oldest first. Any thread may ask."""
        now = self.clock()
        return [slot_info(one, now) for one in sorted([*list(self.running.values()), *self.waiting], key=_arrival)]

    def check(self) -> None:
        """Raise AssertionError unless all bookkeeping is consistent."""
        histories = self.space.histories
        self.cache.check()
        histories.check()
        live = [slot for slot in range(len(histories)) if histories.state(slot) == "live"]
        held = [one.slot for one in self.running.values()]
        assert sorted(slot for slot in held if slot is not None) == live, "running sequences and live histories"
        assert len(self.running) <= self._parallel, "sequences that run"

    # -- the parts of a step -------------------------------------------------------------------------------------------

    def _land(self, record: Record) -> list[Landed]:
        step, self._flying = self._flying, None
        if step is None:
            return []
        try:
            logits = self.executor.wait()
        except Exception as error:
            record.mark("wait")
            self._fail(step, error)
            return []
        now = record.mark("wait")
        landed = land(step, logits, now)
        bad = [one.sequence for one in landed if not one.sound]
        if bad:
            self._scrap()
            self.space.clean(bad)
        record.mark("sample")
        return landed

    def _quiet(self) -> None:
        tasks, self._tasks = self._tasks, []
        for task in tasks:
            task.run(self)
        for one in [one for one in self.running.values() if one.full and not one.awaited]:
            try:
                assert isinstance(one, Generation)
                self.space.shift(one)
                self.monitor.shifted()
            except Exception as error:
                self._end(one, error)

    def _take_off(self, record: Record) -> None:
        step, self._next = self._next, None
        if step is None:
            return
        if not step.alive:
            self.executor.scrap()
            return
        tokens = step.tokens()
        reused = self.executor.counts.reused
        try:
            self.executor.launch(tokens)
        except Exception as error:
            self._fail(step, error)
            return
        self._flying = step
        self.space.note(step, tokens)
        record.launched(step, reused=self.executor.counts.reused > reused)

    def _deliver(self, landed: Landed) -> None:
        reason = deliver(landed, self.clock())
        if reason is not None:
            self._leave(landed.sequence, reason, keep=landed.error is None and landed.sound)

    def _sweep(self) -> None:
        now = self.clock()
        for one in [*self.running.values(), *self.waiting]:
            if one.ticket.cancelled:
                self._end(one, ClosedError("the request was cancelled, or its stream was closed, before it ended"))
            elif one.terms.timeout is not None and now - one.submitted_at > one.terms.timeout:
                self._end(one, DeadlineError(f"the request has not ended within its timeout of {one.terms.timeout} s"))

    def _admit(self) -> None:
        while len(self.running) < self._parallel:
            one = next((one for one in self.waiting if one.ready), None)
            if one is None:
                return
            now = self.clock()
            if not self.space.begin(one, now):
                self._refuse_when_stuck()
                return
            if one.cached is None:
                one.cached, one.started_at = one.submitted, now
            self.waiting.remove(one)
            self.running[one.key] = one
            self.monitor.started(one, now)

    def _refuse_when_stuck(self) -> None:
        """All sequences are held by sessions: with nothing running, none will ever come back by itself."""
        if not self.running:
            self._end(self.waiting[0], ContextOverflowError("sessions hold all sequences of the cache; close some"))

    def _prepare(self) -> None:
        while (planned := self._plan()) is not None:
            if planned.short and self._make_room(planned):
                continue
            if not planned.pieces:
                return
            step = assemble(self._steps, planned.pieces, self.running)
            try:
                self.executor.prepare(step.batch)
            except ContextOverflowError:
                # Layers of several kinds fill up at different speeds, which `room` cannot express.
                if not self._make_room(planned._replace(pieces=())):
                    return
                continue
            self._turns, self._next = planned.turns, step
            self._steps += 1
            for part in step.parts:
                part.sequence.submitted += part.n
                part.sequence.awaited += part.outputs > 0
            return

    def _plan(self) -> Plan | None:
        candidates = self._candidates()
        if not candidates:
            return None
        limits = Limits(
            batch_size=self.executor.batch_size,
            max_outputs=self.executor.max_outputs,
            free_cells=self.space.room,
            headroom=HEADROOM * sum(one.decoding for one in candidates),
        )
        return plan(candidates, limits, self._turns)

    def _candidates(self) -> list[Candidate]:
        return [found for one in self.running.values() if (found := one.candidate()) is not None]

    def _make_room(self, planned: Plan) -> bool:
        """Cells are short: evict a history, else preempt somebody where nobody else can go on. False: wait."""
        if self.space.evict():
            self.monitor.evicted()
            return True
        if (planned.pieces and not planned.starved) or (not planned.pieces and self._flying is not None):
            return False
        candidates = self._candidates()
        victim = choose_victim(candidates, {one.key: self.running[one.key].submitted for one in candidates})
        if victim is not None:
            self._preempt(self.running[victim])
            return True
        if planned.pieces:
            return False
        youngest = max(candidates, key=lambda one: one.key)
        self._end(self.running[youngest.key], ContextOverflowError(
            "the cache is full, and nobody can give up cells: sessions hold them; close some, or open the Engine with "
            "a larger num_ctx or parallel"))  # fmt: skip
        return True

    # -- leaving -------------------------------------------------------------------------------------------------------

    def _fail(self, step: Step, error: BaseException) -> None:
        """A step could not be computed: its requests end, the others are computed anew."""
        log.error("a step failed: %s", error, exc_info=log.isEnabledFor(logging.DEBUG))
        self._scrap()
        for part in step.parts:
            if part.alive:
                self._end(part.sequence, error)
        for one in list(self.running.values()):
            self._preempt(one)
        self.space.forget()

    def _scrap(self) -> None:
        """Give up the prepared step; its sequences are where they were."""
        step, self._next = self._next, None
        if step is None:
            return
        self.executor.scrap()
        for part in step.parts:
            if part.alive:
                part.sequence.submitted -= part.n
                part.sequence.awaited -= part.outputs > 0

    def _end(self, one: Sequence, error: BaseException) -> None:
        """A request ends early."""
        one.ticket.mailbox.put(error)
        self._leave(one, outcome_of(error), keep=isinstance(error, (ClosedError, DeadlineError)))

    def _leave(self, one: Sequence, outcome: Outcome, *, keep: bool) -> None:
        """It has ended: its history stays for others, unless something was wrong with it or it keeps to itself."""
        if one.ended:
            return
        one.ended = True
        one.epoch += 1
        if self.running.pop(one.key, None) is None:
            self.waiting.remove(one)
        self.space.leave(one, self.clock(), keep=keep)
        self.monitor.left(one, outcome, self.clock())

    def _preempt(self, one: Sequence) -> None:
        """Take a running sequence's cells; it waits again, and is computed anew."""
        self.space.leave(one, self.clock(), keep=False)
        del self.running[one.key]
        one.withdraw()
        one.preemptions += 1
        self._queue(one)
        self.monitor.preempted(one)

    def _queue(self, sequence: Sequence) -> None:
        bisect.insort(self.waiting, sequence, key=lambda one: (-one.terms.priority, one.key))


def _arrival(one: Sequence) -> int:
    return one.key
