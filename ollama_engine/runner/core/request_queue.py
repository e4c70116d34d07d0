"""RequestQueue: all requests of an engine, waiting and running. It decides on admission, preemption and the end."""

from __future__ import annotations

import bisect
import operator
from collections.abc import Iterable, Iterator
from dataclasses import replace

from ollama_engine.errors import ClosedError, ConfigError, ContextOverflowError, DeadlineError, Option, short_of_memory
from ollama_engine.runner.core.gap_turns import GapTurns, arrival, is_fair
from ollama_engine.runner.core.stored_prefixes import StoredPrefixes
from ollama_engine.runner.observe.metrics import Outcome
from ollama_engine.runner.observe.monitor import Monitor, SlotInfo, outcome_of, slot_info
from ollama_engine.runner.prefix.cache_manager import CacheManager
from ollama_engine.runner.request.options import RequestOptions
from ollama_engine.runner.request.preparing import late
from ollama_engine.runner.request.results import Result
from ollama_engine.runner.schedule.queued import BatchedRequest, QueuedRequest
from ollama_engine.runner.schedule.scheduler import Candidate, StepPlan, choose_victim
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest
from ollama_engine.runner.schedule.shared_prompts import shares_soon
from ollama_engine.runner.schedule.steering import Draft

__all__ = ["RequestQueue"]

SWEEP_SECONDS = 0.02
"""Interval at which waiting requests are checked for cancellation and timeout."""


class RequestQueue:
    """All requests wait in one list, in the order of priority, then of age.

    A Sequence leaves the list when it gets one of the `parallel` cache sequences; then it runs. A BatchedRequest needs
    no cache sequence: it stays in the list, and when its turn comes, parts of it are in the next batch.
    """

    def __init__(self, cache_manager: CacheManager, parallel: int, monitor: Monitor, gaps: GapTurns) -> None:
        self._cache_manager = cache_manager
        self.stored = StoredPrefixes()
        """The prefix store, if there is one."""
        self._parallel = parallel
        self._monitor = monitor
        self.waiting: list[QueuedRequest] = []
        self.running: dict[int, ScheduledRequest] = {}
        self._arrivals = 0
        self._n_ended = 0
        """Number of sequences that have ended; a preempted sequence waits for it to grow."""
        self._swept_at = float("-inf")
        # -- turns --
        self._admitted = 0
        self.gaps = gaps

    def __iter__(self) -> Iterator[QueuedRequest]:
        """All requests, as a snapshot."""
        return iter([*list(self.running.values()), *self.waiting])

    def __bool__(self) -> bool:
        return bool(self.running or self.waiting)

    @property
    def busy(self) -> bool:
        """Whether a step has work: False where every request waits for its caller, or for the prefix store."""
        waits = self.stored.waiting
        return bool(self.running) or any(not request.idle and request.key not in waits for request in self.waiting)

    @property
    def vacant(self) -> int:
        """Number of sequences that could still be admitted. Any thread may ask."""
        return self._parallel - len(self.running)

    def counts(self) -> tuple[int, int]:
        """(waiting, running) requests. Any thread may ask."""
        waiting = list(self.waiting)
        in_batches = sum(isinstance(request, BatchedRequest) and request.started_at > 0 for request in waiting)
        return len(waiting) - in_batches, len(self.running) + in_batches

    def slots(self) -> list[SlotInfo]:
        """The state of every request, the oldest first. Any thread may ask."""
        now = self._monitor.clock()
        return [slot_info(request, now) for request in sorted(self, key=arrival)]

    def candidates(self) -> list[Candidate]:
        """The running sequences with pending inputs, for the scheduler. Notes those that wait for an image first."""
        running = self.running.values()
        lookahead = self.gaps.plan(running)
        return [candidate for sequence in running if (candidate := sequence.candidate(lookahead)) is not None]

    def propose(self, answers: Iterable[ScheduledRequest]) -> dict[int, Draft]:
        """The guesses for these answers that have drafters, by key. A drafter that raises ends its request."""
        drafts = {}
        for sequence in answers:
            if not isinstance(sequence, Generation) or sequence.drafter is None:
                continue
            try:
                drafts[sequence.key] = sequence.propose()
            except Exception as error:
                self.end(sequence, error)
        return drafts

    def check(self) -> None:
        """Raise AssertionError unless the queue agrees with the prefix cache."""
        self._cache_manager.check()
        prefix_cache = self._cache_manager.prefix_cache
        live = [slot for slot in range(len(prefix_cache)) if prefix_cache.state(slot) == "live"]
        held = [sequence.slot for sequence in self.running.values()]
        assert sorted(slot for slot in held if slot is not None) == live, "running sequences and live histories"
        assert len(self.running) <= self._parallel, "sequences that run"

    # -- steering ------------------------------------------------------------------------------------------------------

    def cancel(self, key: int) -> bool:
        """Have the next sweep end a request; False where there is none of this number. Any thread may ask.

        Raises ConfigError for what is no number.
        """
        request = self._of_number(key)
        if request is not None:
            request.channel.cancelled = True
        return request is not None

    def set_priority(self, key: int, priority: int) -> bool:
        """Change a request's priority, and its place in the line. False where there is none of this number.

        Raises ConfigError for what is no number, and a priority out of range.
        """
        priority = RequestOptions(priority=priority).priority
        request = self._of_number(key)
        if request is None:
            return False
        request.options = replace(request.options, priority=priority)
        if key not in self.running:
            self.waiting.remove(request)
            self._queue(request)
        return True

    def _of_number(self, key: int) -> QueuedRequest | None:
        try:
            number = operator.index(key)
        except TypeError:
            raise ConfigError(f"a request is named by its number, `id` of a slot, got {key!r:.80}") from None
        return next((request for request in self if request.key == number), None)

    # -- coming --------------------------------------------------------------------------------------------------------

    def add(self, request: QueuedRequest) -> None:
        """Queue a request, behind those of higher priority and older ones of the same priority."""
        request.key = self._arrivals
        self._arrivals += 1
        self._monitor.arrived(request)
        self._queue(request)

    def _queue(self, request: QueuedRequest) -> None:
        bisect.insort(self.waiting, request, key=_turn)

    def is_full(self, places: int) -> bool:
        """Whether `places` calls wait, without those that can run at once and without cancelled ones."""
        if len(self.waiting) < places + self.vacant:
            return False
        running = sum(not sequence.channel.unwanted for sequence in list(self.running.values()))
        waiting = {request.call for request in list(self.waiting) if not request.channel.unwanted}
        return len(waiting) >= places + self._parallel - running

    # -- turns ---------------------------------------------------------------------------------------------------------

    def admit(self) -> None:
        """Admit sequences in turn: each gets a cache sequence, which shares the longest cached prefix of its prompt."""
        while len(self.running) < self._parallel:
            sequence = self._next()
            if sequence is None:
                return
            now = self._monitor.clock()
            if not self._cache_manager.begin(sequence, now):
                if not self.running:
                    # Sessions hold all cache sequences, and none will be released by itself.
                    self.end(sequence, ContextOverflowError("sessions hold all sequences of the cache; close some"))
                return
            if sequence.cached is None:
                sequence.cached, sequence.started_at = sequence.submitted, now
            self.waiting.remove(sequence)
            self._admitted += 1
            self.running[sequence.key] = sequence
            sequence.follows = None  # drop the reference: a chain of forks would never be freed
            self._monitor.started(sequence, now)

    def _next(self) -> ScheduledRequest | None:
        """The next sequence to admit, or None."""
        sequences = (request for request in self.waiting if isinstance(request, ScheduledRequest))
        ready = filter(self._admissible, sequences)
        return min(ready, key=arrival, default=None) if is_fair(self._admitted) else next(ready, None)

    def _admissible(self, sequence: ScheduledRequest) -> bool:
        """Whether a sequence may start: not while a prompt that it will share is read from the prefix store or being
        computed, and not after a preemption until another sequence has ended or there are enough cells.
        """
        if not sequence.ready or self.stored.ask(sequence):
            return False
        if shares_soon(sequence, self.running.values(), self._cache_manager.cached):
            return False
        gave_way = bool(self.running) and sequence.preempted_at == self._n_ended
        return not gave_way or self._cache_manager.room >= sequence.known

    def gap_turns(self) -> ScheduledRequest | list[BatchedRequest]:
        """Whose turn the gap between two steps is; see `GapTurns.choose`."""
        return self.gaps.choose(self.waiting, self.running)

    # -- leaving -------------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """End requests that were cancelled or whose timeout has passed."""
        now = self._monitor.clock()
        chosen: list[QueuedRequest]
        # Waiting requests only now and then: there may be thousands of them.
        if now - self._swept_at >= SWEEP_SECONDS:
            self._swept_at = now
            chosen = list(self)
        else:
            chosen = list(self.running.values())
        for request in chosen:
            timeout = request.options.timeout
            if request.channel.unwanted:
                self.end(request, ClosedError("the request was cancelled, or its stream was closed, before it ended"))
            elif timeout is not None and now - request.submitted_at > timeout:
                self.end(request, late(timeout))

    def finish(self, request: BatchedRequest, event: Result | BaseException) -> None:
        """End a batched request with its result or its error."""
        if isinstance(event, BaseException):
            self.end(request, event)
        elif not request.ended:
            self.leave(request, "stop", keep=False)
            request.channel.send(event)

    def end(self, request: QueuedRequest, error: BaseException) -> None:
        """End a request with an error, unless it has ended already. Python's own of short memory becomes ours."""
        if request.ended:
            return
        error = short_of_memory(error) or error
        self.leave(request, outcome_of(error), keep=isinstance(error, (ClosedError, DeadlineError)))
        request.channel.send(error)

    def leave(self, request: QueuedRequest, outcome: Outcome, *, keep: bool) -> None:
        """Remove a request that has ended. `keep` leaves its inputs in the prefix cache for later requests."""
        request.mark_ended()
        now = self._monitor.clock()
        if isinstance(request, ScheduledRequest):
            self._n_ended += 1
            slot = request.slot
            self._cache_manager.leave(request, now, keep=keep)
            self.stored.left(request, slot)
        self._monitor.left(request, outcome, now)
        # Last: after a fault in the lines above, the request still gets the error.
        if self.running.pop(request.key, None) is None:
            self.waiting.remove(request)
        if not self.running:
            self.stored.no_steps()

    def give_up(self, error: BaseException) -> None:
        """End all requests. Does not touch the cache and its bookkeeping, which a fault may have left inconsistent."""
        now = self._monitor.clock()
        for request in self:
            request.mark_ended()
            self._monitor.left(request, outcome_of(error), now)
            request.channel.send(error)
        self.running.clear()
        self.waiting.clear()
        self.stored.no_steps()

    # -- making room ---------------------------------------------------------------------------------------------------

    def make_room(self, planned: StepPlan, *, computing: bool) -> bool:
        """Free cells: evict a cached sequence, else preempt one where no other can continue. False: wait instead."""
        if self._cache_manager.evict():
            self._monitor.evicted()
            return True
        if (planned.scheduled and not planned.starved) or (not planned.scheduled and computing):
            return False
        if self.stored.give_way():
            return True
        candidates = self.candidates()
        freed = {candidate.key: self.running[candidate.key].submitted for candidate in candidates}
        victim = choose_victim(candidates, freed)
        if victim is not None:
            self.preempt(self.running[victim])
            return True
        if planned.scheduled:
            return False
        # Among the running sequences at most the most senior one has cells; taking them may let another continue.
        last = self.running[max(freed, key=freed.__getitem__)]
        self.end(last, self._cache_is_full())
        return True

    def _cache_is_full(self) -> ContextOverflowError:
        larger = ("choose a larger ", Option("num_ctx"), " or ", Option("parallel"))
        if not self._cache_manager.holds_sessions:
            return ContextOverflowError("the cache is full, and has too few cells for this request", advice=[larger])
        return ContextOverflowError(
            "the cache is full, and no cells can be evicted: sessions hold them", advice=["close some", larger]
        )

    def preempt(self, sequence: ScheduledRequest) -> None:
        """Take the cells of a running sequence. It waits again, and is computed again later."""
        self._cache_manager.leave(sequence, self._monitor.clock(), keep=False)
        del self.running[sequence.key]
        sequence.withdraw()
        sequence.preemptions += 1
        sequence.preempted_at = self._n_ended
        self._queue(sequence)
        self._monitor.preempted(sequence)


def _turn(request: QueuedRequest) -> tuple[int, int]:
    return (-request.options.priority, request.key)
