"""Speculation: which sequences the next step drafts for, and how far, by what drafts promise and rows cost here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from ollama_engine.runner.core.request_queue import RequestQueue
from ollama_engine.runner.core.step_output import StepOutput
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.draft_lengths import draft_lengths
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest
from ollama_engine.runner.schedule.steering import Draft, Drafter, DraftSource
from ollama_engine.runner.schedule.step_costs import StepCosts, StepPrices

__all__ = ["Speculation"]

MOST_ANSWERS = 1
"""Guesses are verified for so many answers side by side. Among more, each row costs nearly its full price, and all
wait for a step that is planned anew: four clients' texts came 0.83 to 1.41 times as fast (docs/performance.md)."""


class Speculation:
    """Chooses drafts between two steps, and learns from each step what its rows cost."""

    def __init__(self, queue: RequestQueue, max_outputs: int, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._max_outputs = max_outputs
        self._costs = StepCosts()
        self._collected: tuple[frozenset[int], float] = (frozenset(), 0.0)
        """The sequences of the step before, and when its tokens were there, or later: see `leave_out`."""

    def note(self, step: Step, now: float) -> None:
        """The tokens of a step are there. It counts where it followed another one of the same answers, and is usual."""
        keys = frozenset(entry.sequence.key for entry in step.entries)
        before, then = self._collected
        self._collected = (keys, now)
        if keys <= before and not step.built and all(entry.decoding for entry in step.entries):
            self._costs.note(len(step.batch), now - then, drafted=step.drafted)

    def leave_out(self, seconds: float) -> None:
        """So long something else was done between two steps: what lies between their tokens is no cost of rows."""
        keys, then = self._collected
        self._collected = (keys, then + seconds)

    def draft(self, outputs: Sequence[StepOutput]) -> bool:
        """Choose the drafts of the next step, while none is in flight; whether there are any.

        `outputs`: of the step that was collected. Answers that end with it are still among those that run.
        """
        proposed = self._queue.propose()
        running = self._queue.running
        if not any(draft.tokens or _source(running[key]) is not None for key, draft in proposed.items()):
            return False
        ending = {output.sequence.key for output in outputs if output.reason or output.error}
        drafts = {key: draft for key, draft in proposed.items() if key not in ending}
        running = {key: sequence for key, sequence in running.items() if key not in ending}
        lengths = {key: len(draft.tokens) for key, draft in drafts.items() if draft.chances is None}
        n_rows = len(running) + sum(lengths.values())
        # Steps without drafts come now and then, so that drafts are compared with what these take now.
        prices = self._costs.prices(n_rows)
        few = 0 < len(running) <= MOST_ANSWERS and all(sequence.decoding for sequence in running.values())
        if few and prices is not None:
            begin = self._clock()
            drafts |= _by_sources(running, drafts, prices)
            self.leave_out(self._clock() - begin)  # the sources weigh what that takes
            chances = {key: draft.chances for key, draft in drafts.items() if draft.chances}
            lengths |= draft_lengths(prices, chances, self._max_outputs - n_rows)
        for key, length in lengths.items():
            generation = running[key]
            assert isinstance(generation, Generation), "the only kind that drafts"
            generation.draft = tuple(drafts[key].tokens[:length])
        return any(lengths.values())


def _by_sources(running: Mapping[int, ScheduledRequest], keys: Iterable[int], prices: StepPrices) -> dict[int, Draft]:
    """The drafts of sources, by key; those of answers with the same source are made side by side."""
    by_source: dict[DraftSource, dict[int, Drafter | None]] = {}
    for key in keys:
        generation = running[key]
        if isinstance(generation, Generation) and (source := _source(generation)) is not None:
            by_source.setdefault(source, {})[key] = generation.drafter
    return {key: draft for source, asked in by_source.items() for key, draft in source.make(asked, prices).items()}


def _source(request: ScheduledRequest) -> DraftSource | None:
    """What makes a request's drafts beside what its drafter proposes."""
    return request.drafter.source if isinstance(request, Generation) and request.drafter is not None else None
