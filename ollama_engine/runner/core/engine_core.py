"""EngineCore: all requests of an engine, and one step of it after the other. Single-threaded; knows no caller's thread.

A step is pipelined: while the device computes it, the one before is delivered and the next one is prepared.

    collect    wait for the step, sample
    speculate  drafters guess; where a draft pays, the step that was prepared makes way for one with it
    exclusive  nothing computes: tasks run, full contexts are shifted, cells moved together, one batch of texts is
               embedded, or one image encoded
    launch     start the step that was prepared, with the tokens just sampled
    deliver    text, stop texts, usage
    sweep      cancelled and late requests leave
    admit      waiting requests get a cache sequence, and what of their prompt is in the cache already
    prepare    plan the next step, find its cells, build its graph

A sequence that leaves raises its epoch, so that the result of a step in flight is dropped for it.
"""

from __future__ import annotations

import logging

from ollama_engine.errors import ContextOverflowError, DeviceLostError
from ollama_engine.kvcache import Cache
from ollama_engine.runner.core.defragmenting import Defragmenter
from ollama_engine.runner.core.gap_turns import GapTurns
from ollama_engine.runner.core.hidden_states import give_hidden
from ollama_engine.runner.core.request_queue import RequestQueue
from ollama_engine.runner.core.speculation import Speculation
from ollama_engine.runner.core.steered_rows import prepare_masks
from ollama_engine.runner.core.step_media import NO_STEP_MEDIA, serve_gap, step_media
from ollama_engine.runner.core.step_output import StepOutput, deliver, is_outdated, step_outputs
from ollama_engine.runner.core.task import Task
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.media.image_reader import ImageReader
from ollama_engine.runner.observe.metrics import MetricsSnapshot
from ollama_engine.runner.observe.monitor import Monitor, Record, report
from ollama_engine.runner.prefix.cache_manager import CacheManager
from ollama_engine.runner.schedule.batching import Step, all_that_goes_on, assemble, follow
from ollama_engine.runner.schedule.pace import beside_answers
from ollama_engine.runner.schedule.queued import QueuedRequest
from ollama_engine.runner.schedule.scheduler import BatchLimits, SchedulerState, StepPlan, plan
from ollama_engine.runner.schedule.sequence import Generation

__all__ = ["EngineCore"]

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""Interval at which an idle engine checks its tables: with 131,072 cells a check takes 2 ms."""


class EngineCore:
    """Serves sequences, up to `parallel` at once. `verify` checks the bookkeeping after every step."""

    def __init__(
        self, executor: Executor, cache: Cache, parallel: int, monitor: Monitor, *, verify: bool = False,
        images: ImageReader | None = None,
    ) -> None:  # fmt: skip
        # -- collaborators --
        self.executor = executor
        self.cache = cache
        self.cache_manager = CacheManager(cache)
        self.monitor = monitor
        self._images = images
        self._defragmenter = Defragmenter(cache, monitor)
        # -- configuration --
        self._verify = verify
        self._traits = executor.traits
        self._recurrent = cache.recurrent is not None
        # -- work --
        self.queue = RequestQueue(self.cache_manager, parallel, monitor, GapTurns(executor.batch_size, self._traits))
        self._speculation = Speculation(self.queue, executor.max_outputs, monitor.clock)
        self.tasks: list[Task[EngineCore]] = []
        # -- steps --
        self._scheduler_state = SchedulerState()
        self._next: Step | None = None
        self._next_media = NO_STEP_MEDIA
        self._in_flight: Step | None = None
        self._steps = 0
        # -- checks --
        self._changed, self._checked_at = False, float("-inf")

    # -- from outside --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """Whether there is anything to do."""
        return bool(self._in_flight or self._next or self.tasks or self.queue.busy or self.queue.stored.busy)

    def add(self, request: QueuedRequest) -> None:
        """Queue a request; the next step considers it."""
        self.queue.add(request)

    def add_task(self, task: Task[EngineCore]) -> None:
        """Run a task as soon as no step is in flight."""
        self.tasks.append(task)

    def step(self) -> None:
        """Do one step. An exception is a fault of the engine itself, which cannot serve anything after that."""
        with self.monitor.step() as record:
            outputs = self._collect(record)
            drafted = self._speculation.draft(outputs)
            if drafted or (outputs and self._next is not None and is_outdated(self._next, outputs)):
                self.scrap()
            begin = self.monitor.clock()
            self._exclusive()
            self._speculation.leave_out(self.monitor.clock() - begin)
            if self._next is None and outputs and all(output.goes_on for output in outputs):
                if not drafted or not self._go_on():
                    self._prepare(early=True)  # so that the device need not wait for the delivery
                record.mark("plan")
            self._launch(record)
            deliver(outputs, self.queue, self.monitor.clock())
            record.mark("emit")
            self.queue.sweep()
            self.queue.admit()
            if self._in_flight is None or not self._in_flight.drafted:  # how many guesses are right is not known yet
                self._prepare()
            if self._in_flight is not None and self._in_flight.constrained:
                prepare_masks(self._in_flight)
            record.mark("plan")
        if self._verify or self._check_is_due():
            self.check()

    def _check_is_due(self) -> bool:
        if self.busy or not self._changed or self.monitor.clock() - self._checked_at < CHECK_SECONDS:
            return False
        self._changed, self._checked_at = False, self.monitor.clock()
        return True

    def flush(self, seconds: float) -> None:
        """Before closing: have the prefix store write what waits, for so long at most. Raises nothing."""
        try:
            if self.queue.stored.pending:
                with self.monitor.step() as record:
                    self._collect(record)  # its step in flight still writes cells
            self.queue.stored.flush(seconds)
        except Exception as error:
            report(log, logging.ERROR, "prefixes could not be stored: %s", error)

    def fail_all(self, error: BaseException) -> None:
        """End every request, also waiting ones, with this error, after the step in flight. For closing the engine."""
        try:
            self.executor.close()
        finally:
            self._in_flight = self._next = None
            self.queue.give_up(error)
            for task in self.tasks:
                task.fail(error)
            self.tasks.clear()

    def metrics(self, coming: int = 0) -> MetricsSnapshot:
        """Counters and gauges; `coming` adds requests that are not queued yet. Any thread may ask."""
        waiting, running = self.queue.counts()
        image_bytes = 0 if self._images is None else self._images.cache.nbytes
        return self.monitor.snapshot(self.cache.usage, waiting + coming, running, image_bytes, self.executor.threads)

    def check(self) -> None:
        """Raise AssertionError unless all bookkeeping is consistent."""
        self.cache.check()
        self.queue.check()
        if self._next is not None:
            self._next.check()

    # -- the parts of a step -------------------------------------------------------------------------------------------

    def _collect(self, record: Record) -> list[StepOutput]:
        step, self._in_flight = self._in_flight, None
        if step is None:
            return []
        try:
            with self.executor.results() as logits:
                now = record.mark("wait")
                outputs = step_outputs(step, logits, now, self.executor.best_logits)
                give_hidden(step, self.executor)
        except Exception as error:
            self._fail(step, error)
            return []
        for output in outputs:
            record.count(len(output.tokens), output.drafted, output.accepted)
            if output.taken_back:
                self.cache_manager.take_back(output.sequence)
        if bad := [output.sequence for output in outputs if not output.sound]:
            self.scrap()
            # The same step may have written cells of a cached sequence, whose request ended meanwhile.
            self.cache_manager.forget()
            self.cache_manager.clean(bad)
        record.collected()
        self._speculation.note(step, outputs, now)
        return outputs

    def _exclusive(self) -> None:
        for _ in range(len(self.tasks)):
            self._changed = True
            self.tasks[0].run(self)
            del self.tasks[0]  # not before it has run: after a fault, fail_all still finds the task and its caller
        settled = [sequence for sequence in self.queue.running.values() if sequence.full and not sequence.awaited]
        for generation in settled:
            try:
                assert isinstance(generation, Generation)
                self.cache_manager.shift(generation)
                self.monitor.shifted()
            except Exception as error:
                self.queue.end(generation, error)
        if not self._defragmenter.serve_gap(self.queue.running.values(), self._steps, self.scrap):
            self._compute_again()
        serve_gap(self.queue, self._steps, self.monitor)
        self.queue.stored.serve_gap(alone=not self.queue.running)

    def _launch(self, record: Record) -> None:
        step, self._next = self._next, None
        if step is None:
            return
        if not step.alive:
            self.executor.scrap()
            return
        media, self._next_media = self._next_media, NO_STEP_MEDIA
        reused = self.executor.counts.reused
        try:
            self.cache_manager.leave_out(step)
            self.executor.launch(tokens := step.tokens(), media.rows)
        except Exception as error:
            self._fail(step, error)
            return
        self._in_flight, self._changed = step, True
        self.cache_manager.note(step, tokens)
        step.built = self.executor.counts.reused == reused
        record.launched(step, reused=not step.built)
        for part, failure in media.failures:
            # Not before the launch: the cells of the sequence belong to the step.
            self.queue.end(step.sequence_at(part.row), failure)

    def _prepare(self, *, early: bool = False) -> None:
        """`early`: before tokens are delivered. No request is ended to make room: it may have some of them."""
        computing = self._in_flight is not None
        if self._follow():
            return
        groups = most = self._traits.groups_per_batch
        while (planned := self._plan(groups)) is not None:
            if planned.short and not early and self.queue.make_room(planned, computing=computing):
                continue
            if (planned.short and early) or (not planned.scheduled and groups == most):
                return
            step = assemble(self._steps, planned.scheduled, self.queue.running, self._traits, recurrent=self._recurrent)
            if step.entries and self._place(step):
                self._scheduler_state = planned.state
                return
            if groups and step.batch.images is not None:
                groups -= 1  # images that rows before a new one see keep their places in this batch, not in the next
                continue
            groups = most
            # Layers of several kinds fill up at different speeds, which `room` cannot express.
            if early or not self.queue.make_room(planned._replace(scheduled=()), computing=computing):
                return

    def _follow(self) -> bool:
        """Prepare the next token of every sequence of this step, without planning; False where that is not enough."""
        step = self._in_flight
        if step is None or len(step.entries) != len(self.queue.running) or len(step.entries) > self.cache_manager.room:
            return False
        following = follow(self._steps, step)
        return following is not None and self._place(following)

    def _go_on(self) -> bool:
        """Prepare all that every answer has, drafts included, without planning; False where that is not enough."""
        most = min(self.executor.batch_size, self.executor.max_outputs, self.cache_manager.room)
        scheduled = all_that_goes_on(self.queue.running.values(), most)
        if scheduled is None:
            return False
        step = assemble(self._steps, scheduled, self.queue.running, self._traits, recurrent=self._recurrent)
        return self._place(step)

    def _place(self, step: Step) -> bool:
        """Find cells and a graph for a step; False where there are too few cells. Another error ends its requests."""
        try:
            self.executor.prepare(step.batch, step.needed)
        except ContextOverflowError:
            return False
        except Exception as error:
            report(
                log, logging.ERROR, "a step could not be prepared: %s", error, exc_info=log.isEnabledFor(logging.DEBUG)
            )
            for entry in step.entries:
                self.queue.end(entry.sequence, error)
            return True
        self._next = step
        if step.batch.media:
            self._next_media = step_media(step, self.executor, self.monitor)
        self._steps += 1
        for entry in step.entries:
            sequence = entry.sequence
            sequence.cut_draft(entry.n)
            sequence.submitted += entry.n
            sequence.awaited += entry.outputs > entry.read
        return True

    def _plan(self, groups: int | None) -> StepPlan | None:
        candidates = self.queue.candidates()
        if not candidates:
            return None
        most = BatchLimits(self.executor.batch_size, self.executor.max_outputs, self.cache_manager.room, groups=groups)
        return plan(candidates, beside_answers(most, candidates), self._scheduler_state)

    # -- giving up -----------------------------------------------------------------------------------------------------

    def _fail(self, step: Step, error: BaseException) -> None:
        """After a step that could not be computed: end its requests, and compute all others again."""
        if not isinstance(error, DeviceLostError):  # the Engine closes, and the log says so with the same words
            report(log, logging.ERROR, "a step failed: %s", error, exc_info=log.isEnabledFor(logging.DEBUG))
        self.scrap()
        for entry in step.entries:
            if entry.alive:
                self.queue.end(entry.sequence, error)
        self._compute_again()

    def _compute_again(self) -> None:
        for sequence in list(self.queue.running.values()):
            self.queue.preempt(sequence)
        self.cache_manager.forget()

    def scrap(self) -> None:
        """Drop the prepared step; its sequences are as before."""
        step, self._next, self._next_media = self._next, None, NO_STEP_MEDIA
        if step is None:
            return
        self.executor.scrap()
        for entry in step.entries:
            if entry.alive:
                entry.sequence.submitted -= entry.n
                entry.sequence.awaited -= entry.outputs > entry.read
