"""Monitor: records what the core does, as metrics, timeline and log. It decides nothing."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ollama_engine.errors import ClosedError, DeadlineError, TokenizerError
from ollama_engine.input import Int32Array
from ollama_engine.kvcache import CellUsage
from ollama_engine.runner.observe.metrics import CellCounts, Metrics, MetricsSnapshot, Outcome
from ollama_engine.runner.observe.trace import Phase, PhaseSpan, StepRecord, Trace
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.queued import Kind, QueuedRequest, State

__all__ = ["TRACE", "Monitor", "Record", "SlotInfo", "report"]

log = logging.getLogger("ollama_engine.trace")

LONG_PROMPT = 128
"""Prompt tokens of a step from which on it says how fast prompts are computed."""

TRACE = 5
"""Level of the log that shows every batch with its token ids and texts; below logging.DEBUG."""


@dataclass(frozen=True, slots=True)
class SlotInfo:
    """The state of one request in the engine."""

    id: int
    """Number in the order of arrival."""
    kind: Kind
    state: State
    """"batches": some of its texts are in batches, or have been."""
    prompt_tokens: int
    """Prompt tokens; of a call with texts, those tokenized until now."""
    computed_tokens: int
    """Tokens of prompt and answer whose keys and values are in the cache or under way; of texts, those embedded."""
    cached_tokens: int
    """Prompt tokens that were reused."""
    completion_tokens: int
    priority: int
    preemptions: int
    seconds: float
    """Seconds since it was submitted."""
    sequence: int | None
    """The request's cache sequence; None while it waits, and for embeddings."""


def slot_info(request: QueuedRequest, now: float) -> SlotInfo:
    """The state of a request. Any thread may ask; the numbers need not be of the same moment."""
    progress = request.progress()
    return SlotInfo(
        id=request.key,
        kind=request.kind,
        priority=request.options.priority,
        seconds=now - request.submitted_at,
        **progress._asdict(),
    )


@dataclass(slots=True)
class _Flight:
    """A step in flight: launched at `at`, in the monitor's clock."""

    at: float
    step: Step
    reused: bool


def report(logger: logging.Logger, level: int, text: str, *args: object, exc_info: bool = False) -> None:
    """Log, and swallow errors: a handler that raises, or calls the engine, must not end the engine."""
    with suppress(Exception):
        logger.log(level, text, *args, exc_info=exc_info)


class Record:
    """Timing of one turn of the core, by phase."""

    def __init__(self, monitor: Monitor, now: float, flight: _Flight | None) -> None:
        self._monitor = monitor
        self._at = now
        self._flight = flight
        self.spans: list[PhaseSpan] = []
        self.generated = 0
        """Tokens that the step gave to answers."""
        self.drafted = self.accepted = 0
        """Draft tokens that the step verified, and those that were right."""

    def mark(self, phase: Phase) -> float:
        """Attribute the time since the last mark to `phase`; returns the current time."""
        now = self._monitor.clock()
        self.spans.append(PhaseSpan(phase, self._at, now))
        self._at = now
        return now

    def count(self, generated: int, drafted: int, accepted: int) -> None:
        """One answer got so many tokens of the step."""
        self.generated += generated
        self.drafted += drafted
        self.accepted += accepted

    def collected(self) -> None:
        """Count the step whose tokens have just been sampled. Called before the callers get them."""
        self.mark("sample")
        if self._flight is not None:
            computed = next(span.end for span in self.spans if span.phase == "wait")
            self._monitor.collected(self._flight, computed, self)

    def launched(self, step: Step, *, reused: bool) -> None:
        """The prepared step has been started."""
        self._monitor.launched(step, self.mark("build"), reused=reused)


class Monitor:
    """Reports of one engine. `piece` gives a token's text, for the log."""

    def __init__(self, piece: Callable[[int], str], clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.metrics = Metrics()
        self.trace = Trace()
        self.prompt_speed: float | None = None
        """Prompt tokens a second in steps that compute many, in the average of the latest; None: there was none."""
        self._piece = piece
        self._flight: _Flight | None = None

    # -- steps ---------------------------------------------------------------------------------------------------------

    @contextmanager
    def step(self) -> Iterator[Record]:
        """One turn of the core."""
        before, self._flight = self._flight, None
        record = Record(self, self.clock(), before)
        yield record
        if before is not None and any(span.phase == "wait" for span in record.spans):
            step = before.step
            self.trace.step(
                StepRecord(
                    step.number,
                    tuple(record.spans),
                    step.prompt_tokens,
                    record.generated,
                    len(step.entries),
                    before.reused,
                    record.drafted,
                    record.accepted,
                )
            )

    def collected(self, flight: _Flight, now: float, record: Record) -> None:
        """A step was computed at time `now`."""
        if flight.step.prompt_tokens >= LONG_PROMPT:
            speed = flight.step.prompt_tokens / max(now - flight.at, 1e-9)
            before = self.prompt_speed
            self.prompt_speed = speed if before is None else 0.8 * before + 0.2 * speed
        self.metrics.step(
            now,
            now - flight.at,
            prompt_tokens=flight.step.prompt_tokens,
            completion_tokens=record.generated,
            drafted_tokens=record.drafted,
            accepted_tokens=record.accepted,
            graph_reused=flight.reused,
        )

    def launched(self, step: Step, now: float, *, reused: bool) -> None:
        """A step computes from now on."""
        self._flight = _Flight(now, step, reused)
        if log.isEnabledFor(TRACE):
            self._log(step)

    def _log(self, step: Step) -> None:
        tokens, positions, row = step.tokens().tolist(), step.batch.positions.tolist(), 0
        for entry in step.entries:
            ids = tokens[row : row + entry.n]
            report(
                log, TRACE, "step %d request %d sequence %d position %d logits %d: %s", step.number, entry.sequence.key,
                entry.slot, positions[row], entry.outputs, " ".join(f"{token}={self._text(token)!r}" for token in ids),
            )  # fmt: skip
            row += entry.n

    def snapshot(
        self, usage: CellUsage, waiting: int, running: int, image_bytes: int = 0, threads: int = 0
    ) -> MetricsSnapshot:
        """All metrics now, with current gauges."""
        cells = CellCounts(usage.used, usage.free, usage.shared)
        self.metrics.gauges(queued=waiting, running=running, cells=cells, image_bytes=image_bytes, threads=threads)
        return self.metrics.snapshot(self.clock())

    def _text(self, token: int) -> str:
        try:
            return self._piece(token)
        except TokenizerError:
            return "?"  # a model may have more tokens than its vocabulary has texts

    # -- requests ------------------------------------------------------------------------------------------------------

    def arrived(self, request: QueuedRequest) -> None:
        tokens, priority = request.progress().prompt_tokens, request.options.priority
        self.trace.begin_request(request.key, self.clock(), kind=request.kind, prompt_tokens=tokens, priority=priority)

    def started(self, request: QueuedRequest, now: float) -> None:
        """A request got its cache sequence, or its first part is in a batch."""
        progress = request.progress()
        if not progress.preemptions:
            self.metrics.count(cached_tokens=progress.cached_tokens)
        self.trace.mark_request(request.key, "started", now)

    def preempted(self, request: QueuedRequest) -> None:
        """A request lost its cells."""
        self.metrics.count(preemptions=1)
        self.trace.mark_request(request.key, "preempted", self.clock())

    def evicted(self) -> None:
        """A cached sequence was evicted."""
        self.metrics.count(evictions=1)

    def restored(self, number: int, tokens: int, begin: float) -> None:
        """Keys and values of a prompt were put into the cache, from the prefix store, from `begin` until now."""
        self.metrics.count(prefix_store_read_tokens=tokens)
        self.trace.step(StepRecord(number, (PhaseSpan("restore", begin, self.clock()),), tokens, sequences=1))

    def stored(self, tokens: int) -> None:
        """Keys and values of so many tokens were written to the prefix store."""
        self.metrics.count(prefix_store_written_tokens=tokens)

    def left_stored(self, tokens: int) -> None:
        """So many tokens of a prompt are in the prefix store, and are computed, because that is quicker. Any thread."""
        self.metrics.count(prefix_store_left_tokens=tokens)

    def shifted(self) -> None:
        """A full context was shifted."""
        self.metrics.count(shifts=1)

    def left(self, request: QueuedRequest, outcome: Outcome, now: float) -> None:
        progress = request.progress()
        self.metrics.ended(request.kind, outcome)
        self.trace.end_request(
            request.key,
            now,
            outcome=outcome,
            prompt_tokens=progress.prompt_tokens,
            completion_tokens=progress.completion_tokens,
        )

    # -- batches of texts ----------------------------------------------------------------------------------------------

    def embedded(self, number: int, texts: list[Int32Array], begin: float) -> None:
        """A batch of texts was computed from `begin` until now."""
        now, tokens = self.clock(), sum(map(len, texts))
        self.metrics.embedded(now - begin, texts=len(texts), tokens=tokens)
        self.trace.step(StepRecord(number, (PhaseSpan("embed", begin, now),), tokens, sequences=len(texts)))
        if log.isEnabledFor(TRACE):
            for ids in texts:
                shown = " ".join(f"{token}={self._text(token)!r}" for token in ids.tolist())
                report(log, TRACE, "batch %d of texts: %s", number, shown)

    # -- images --------------------------------------------------------------------------------------------------------

    def defragmented(self, number: int, cells: int, begin: float) -> None:
        """Cells were moved together from `begin` until now."""
        now = self.clock()
        self.metrics.count(moved_cells=cells)
        self.trace.step(StepRecord(number, (PhaseSpan("defrag", begin, now),)))

    def encoded(self, number: int, begin: float) -> None:
        """An image was encoded from `begin` until now."""
        now = self.clock()
        self.metrics.encoded(now - begin)
        self.trace.step(StepRecord(number, (PhaseSpan("encode", begin, now),), sequences=1))

    def image_hit(self) -> None:
        """A request needs an image that was encoded already, for another one or before."""
        self.metrics.count(image_hits=1)


def outcome_of(error: BaseException) -> Outcome:
    """The outcome of a request that ended with this error."""
    if isinstance(error, DeadlineError):
        return "deadline"
    return "cancelled" if isinstance(error, ClosedError) else "error"
