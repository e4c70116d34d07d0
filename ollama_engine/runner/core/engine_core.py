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

import logging
from typing import Protocol

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import Cache
from ollama_engine.runner.core.request_queue import Roster
from ollama_engine.runner.core.step_output import Landed, land, outcome
from ollama_engine.runner.load.executor import Executor
from ollama_engine.runner.observe.metrics import MetricsSnapshot
from ollama_engine.runner.observe.monitor import Monitor, Record, report
from ollama_engine.runner.prefix.cache_manager import Space
from ollama_engine.runner.schedule.batching import Step, assemble, follow
from ollama_engine.runner.schedule.scheduler import Limits, Plan, Turns, plan
from ollama_engine.runner.schedule.sequence import Generation, Sequence

__all__ = ["Core", "Task"]

log = logging.getLogger(__name__)

PROMPT_TOKENS = 64
"""Of prompts, in a step that also decodes: answers under way go on at a fair pace, and 64 rows take little longer each
than 512 do."""

HEADROOM = 16
"""Cells that prompts leave to each decoding sequence, so that it can go on for a while."""

CHECK_SECONDS = 1.0
"""How often an engine that has nothing to do looks through its tables: with 131,072 cells that takes 2 ms."""


class Task(Protocol):
    """Something that needs the cache while nothing computes; raises nothing, but tells whoever waits for it."""

    def run(self, core: Core) -> None:
        """Do it."""

    def fail(self, error: BaseException) -> None:
        """It will not be done."""


class Core:
    """Serves sequences, up to `parallel` at once. `verify` checks the bookkeeping after every step."""

    def __init__(
        self, executor: Executor, cache: Cache, parallel: int, monitor: Monitor, *, verify: bool = False
    ) -> None:
        # -- collaborators --
        self.executor = executor
        self.cache = cache
        self.space = Space(cache, executor)
        self.monitor = monitor
        # -- configuration --
        self._verify = verify
        # -- work --
        self.roster = Roster(self.space, parallel, monitor)
        self._tasks: list[Task] = []
        # -- steps --
        self._turns = Turns()
        self._next: Step | None = None
        self._flying: Step | None = None
        self._steps = 0
        # -- checks --
        self._changed = False
        self._checked_at = float("-inf")

    # -- from outside --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self.roster or self._tasks or self._flying or self._next)

    def add(self, one: Sequence) -> None:
        """Queue a request."""
        self.roster.add(one)

    def add_task(self, task: Task) -> None:
        """Run it as soon as nothing computes."""
        self._tasks.append(task)

    def step(self) -> None:
        """Do one step. Raises what is a fault of the engine itself; nothing can be served after that."""
        with self.monitor.step() as record:
            landed = self._land(record)
            self._quiet()
            self._take_off(record)
            self._deliver(landed)
            record.mark("emit")
            self.roster.sweep()
            self.roster.admit()
            self._prepare()
            record.mark("plan")
        if self._verify or self._check_is_due():
            self.check()

    def _check_is_due(self) -> bool:
        if self.busy or not self._changed or self.monitor.clock() - self._checked_at < CHECK_SECONDS:
            return False
        self._changed, self._checked_at = False, self.monitor.clock()
        return True

    def fail_all(self, error: BaseException) -> None:
        """End every request, the waiting ones too, with this error; a step that computes ends first. For the end."""
        try:
            self.executor.close()
        finally:
            self._flying = self._next = None
            self.roster.give_up(error)
            for task in self._tasks:
                task.fail(error)
            self._tasks.clear()

    def metrics(self, coming: int = 0) -> MetricsSnapshot:
        """What was done, and how things stand; `coming` more are on their way here. Any thread may ask."""
        return self.monitor.snapshot(self.cache.usage, len(self.roster.waiting) + coming, len(self.roster.running))

    def check(self) -> None:
        """Raise AssertionError unless all bookkeeping is consistent."""
        self.cache.check()
        self.roster.check()
        if self._next is not None:
            self._next.check()

    # -- the parts of a step -------------------------------------------------------------------------------------------

    def _land(self, record: Record) -> list[Landed]:
        step, self._flying = self._flying, None
        if step is None:
            return []
        try:
            with self.executor.landed() as logits:
                landed = land(step, logits, record.mark("wait"))
        except Exception as error:
            self._fail(step, error)
            return []
        bad = [one.sequence for one in landed if not one.sound]
        if bad:
            self.scrap()
            # What else came of it may wait in a history that was left early.
            self.space.forget()
            self.space.clean(bad)
        record.generated = sum(one.token is not None for one in landed)
        record.mark("sample")
        return landed

    def _quiet(self) -> None:
        for _ in range(len(self._tasks)):
            self._changed = True
            self._tasks[0].run(self)
            del self._tasks[0]  # not before, so that a fault is told to whoever waits for it
        for one in [one for one in self.roster.running.values() if one.full and not one.awaited]:
            try:
                assert isinstance(one, Generation)
                self.space.shift(one)
                self.monitor.shifted()
            except Exception as error:
                self.roster.end(one, error)

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
        self._flying, self._changed = step, True
        self.space.note(step, tokens)
        record.launched(step, reused=self.executor.counts.reused > reused)

    def _deliver(self, landed: list[Landed]) -> None:
        now = self.monitor.clock()
        for one in landed:
            sequence = one.sequence
            if sequence.ended:
                continue  # by an error since it landed
            event, ended = outcome(one, now)
            if ended is not None:
                # Before the caller knows, so that it finds what it expects.
                self.roster.leave(sequence, ended, keep=not isinstance(event, BaseException) and one.sound)
            sequence.ticket.send(event)

    def _prepare(self) -> None:
        computing = self._flying is not None
        if self._follow():
            return
        while (planned := self._plan()) is not None:
            if planned.short and self.roster.make_room(planned, computing=computing):
                continue
            if not planned.pieces:
                return
            if self._place(assemble(self._steps, planned.pieces, self.roster.running)):
                self._turns = planned.turns
                return
            # Layers of several kinds fill up at different speeds, which `room` cannot express.
            if not self.roster.make_room(planned._replace(pieces=()), computing=computing):
                return

    def _follow(self) -> bool:
        """Prepare the next token of each that the step under way serves; False where there is more to think about."""
        step = self._flying
        if step is None or len(step.parts) != len(self.roster.running) or len(step.parts) > self.space.room:
            return False
        following = follow(self._steps, step)
        return following is not None and self._place(following)

    def _place(self, step: Step) -> bool:
        """Find cells and a graph for a step; False where there are too few cells."""
        try:
            self.executor.prepare(step.batch)
        except ContextOverflowError:
            return False
        self._next = step
        self._steps += 1
        for part in step.parts:
            one = part.sequence
            one.submitted += part.n
            one.awaited += part.outputs > 0
        return True

    def _plan(self) -> Plan | None:
        candidates = self.roster.candidates()
        if not candidates:
            return None
        limits = Limits(
            batch_size=self.executor.batch_size,
            max_outputs=self.executor.max_outputs,
            free_cells=self.space.room,
            prompt_tokens=PROMPT_TOKENS,
            headroom=HEADROOM * sum(one.decoding for one in candidates),
        )
        return plan(candidates, limits, self._turns)

    # -- giving up -----------------------------------------------------------------------------------------------------

    def _fail(self, step: Step, error: BaseException) -> None:
        """A step could not be computed: its requests end, the others are computed anew."""
        report(log, logging.ERROR, "a step failed: %s", error, exc_info=log.isEnabledFor(logging.DEBUG))
        self.scrap()
        for part in step.parts:
            if part.alive:
                self.roster.end(part.sequence, error)
        for one in list(self.roster.running.values()):
            self.roster.preempt(one)
        self.space.forget()

    def scrap(self) -> None:
        """Give up the prepared step; its sequences are where they were."""
        step, self._next = self._next, None
        if step is None:
            return
        self.executor.scrap()
        for part in step.parts:
            if part.alive:
                part.sequence.submitted -= part.n
                part.sequence.awaited -= part.outputs > 0
