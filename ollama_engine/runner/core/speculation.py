"""Speculation: which sequences the next step drafts for, and how far, by what drafts promise and rows cost here."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from ollama_engine.runner.core.request_queue import RequestQueue
from ollama_engine.runner.core.step_output import StepOutput
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.draft_lengths import draft_lengths
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.step_costs import StepCosts

__all__ = ["Speculation"]

MOST_ANSWERS = 1
"""Guesses are verified for so many answers side by side. With four, measured gains lay between 0.82 and 1.31 times, by
the text (bench/drafts.py): all wait for a step that is planned anew and builds a graph."""


class Speculation:
    """Chooses drafts between two steps, and learns from each step what its rows cost."""

    def __init__(self, queue: RequestQueue, max_outputs: int) -> None:
        self._queue = queue
        self._max_outputs = max_outputs
        self._costs = StepCosts()
        self._collected: tuple[frozenset[int], float] = (frozenset(), 0.0)
        """The sequences of the step before, and when its tokens were there."""

    def note(self, step: Step, now: float) -> None:
        """The tokens of a step are there. It counts where it followed another one of the same answers."""
        keys = frozenset(entry.sequence.key for entry in step.entries)
        before, then = self._collected
        self._collected = (keys, now)
        if keys <= before and all(entry.decoding for entry in step.entries):
            self._costs.note(len(step.batch), now - then, drafted=step.drafted)

    def draft(self, outputs: Sequence[StepOutput]) -> bool:
        """Choose the drafts of the next step, while none is in flight; whether there are any.

        `outputs`: of the step that was collected. Answers that end with it are still among those that run.
        """
        ending = {output.sequence.key for output in outputs if output.reason or output.error}
        drafts = {key: draft for key, draft in self._queue.propose().items() if key not in ending}
        if not any(draft.tokens for draft in drafts.values()):
            return False
        running = {key: sequence for key, sequence in self._queue.running.items() if key not in ending}
        lengths = {key: len(draft.tokens) for key, draft in drafts.items() if draft.chances is None}
        n_rows = len(running) + sum(lengths.values())
        # Steps without drafts come now and then, so that drafts are compared with what these take now.
        if (
            len(running) <= MOST_ANSWERS
            and self._costs.is_recent(n_rows)
            and all(sequence.decoding for sequence in running.values())
        ):
            chances = {key: draft.chances for key, draft in drafts.items() if draft.chances}
            plain, seconds = self._costs.seconds(n_rows), partial(self._costs.seconds, drafted=True)
            lengths |= draft_lengths(n_rows, chances, plain, seconds, self._max_outputs - n_rows)
        for key, length in lengths.items():
            generation = running[key]
            assert isinstance(generation, Generation), "the only kind that drafts"
            generation.draft = tuple(drafts[key].tokens[:length])
        return any(lengths.values())
