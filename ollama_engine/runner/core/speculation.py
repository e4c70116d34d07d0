"""Speculation: which sequences the next step drafts for, and how far, by what drafts promise and rows cost here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ollama_engine.input import Int32Array
from ollama_engine.runner.core.request_queue import RequestQueue
from ollama_engine.runner.core.step_output import StepOutput
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.draft_budget import DraftBudget
from ollama_engine.runner.schedule.draft_lengths import draft_lengths
from ollama_engine.runner.schedule.drafts import MAX_DRAFT, constrained
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest
from ollama_engine.runner.schedule.steering import Draft, Drafter, DraftSource
from ollama_engine.runner.schedule.step_costs import DRIFT, OUTLIER, StepCosts, StepPrices

__all__ = ["Speculation"]

ASKING, LONGEST_REST = 0.005, 16
"""Where asking drafters gives nothing, none is asked for some steps, so that it costs this part of the time; and most
of such steps."""
MANY = 32
"""Rows from which a step takes as long as its rows do: one with fewer takes as long as the weights."""
PATIENCE = 4
"""For each so many times that it gave nothing, one step is left out at most: a text that repeats itself has gaps."""


class Speculation:
    """Chooses drafts between two steps, and learns from each step what its rows cost."""

    def __init__(self, queue: RequestQueue, max_outputs: int, clock: Callable[[], float]) -> None:
        self._queue = queue
        self._clock = clock
        self._max_outputs = max_outputs
        self._costs = StepCosts()
        self._budget = DraftBudget()
        # -- the step before --
        self._slots: Int32Array | None = None
        """Of its rows. No entries: these would keep sequences that have ended, and errors with their frames."""
        self._keys: frozenset[int] = frozenset()
        self._collected_at = 0.0
        """When its tokens were there, or later: see `leave_out`."""
        self._drafted_before = (0, 0.0)
        """Rows and seconds of the step before, where it had drafts and is not counted yet."""
        self._first_guesses: dict[int, int] = {}
        """Of the drafts for the step in flight, by key, whether it verifies them or not."""
        self._rest = 0
        """Steps before drafters are asked again."""
        self._fruitless = 0
        """Times that they were asked for nothing since a guess of theirs came true."""
        self._prompt_row: float | None = None
        """Seconds of a row of a step that reads prompts beside answers."""

    def note(self, step: Step, outputs: Sequence[StepOutput], now: float) -> None:
        """The tokens of a step are there. It counts where it followed another one of the same answers."""
        then, self._collected_at = self._collected_at, now
        if any(output.accepted for output in outputs):
            self._fruitless = 0
        usual, guesses, beside = step.decoding, self._first_guesses, False
        self._first_guesses = {}
        if step.batch.sequences is not self._slots:  # a step that follows another one has its array
            before, self._slots = self._keys, step.batch.sequences
            self._keys = frozenset(entry.sequence.key for entry in step.entries)
            self._budget.begin(self._keys | self._queue.running.keys())  # one that a step leaves out keeps its account
            usual = self._keys <= before and all(entry.decoding for entry in step.entries)
            beside = not usual and not before.isdisjoint(self._keys)
        if not usual:
            self._drafted_before = (0, 0.0)
            if beside:
                self._note_beside(step, outputs, now - then)
            return
        for output in outputs:
            guess = guesses.get(output.sequence.key)
            if guess is not None and output.tokens and not output.drafted:
                self._budget.note_unverified(output.sequence.key, right=output.tokens[0] == guess)
        rows, plain = len(step.batch), self._costs.seconds(len(self._keys))
        if not step.drafted:
            self._budget.note_plain()
        elif plain is not None:  # what such a step takes, for this one may have built a graph
            counts = {output.sequence.key: (output.drafted, output.accepted) for output in outputs}
            self._budget.note(counts, (self._costs.seconds(rows, drafted=True) or plain) / plain)
        seconds, (rows_before, took) = now - then, self._drafted_before
        self._drafted_before = (rows, seconds) if step.drafted and not step.built else (0, 0.0)
        if rows_before:  # a plain step behind it was not prepared while it computed, which is its cost
            expected = None if step.drafted or step.built else self._costs.seconds(rows)
            later = 0.0 if expected is None else max(0.0, seconds - expected)
            self._costs.note(rows_before, took + later, drafted=True)
        elif not step.built and not step.drafted:
            self._costs.note(rows, seconds)

    def _note_beside(self, step: Step, outputs: Sequence[StepOutput], seconds: float) -> None:
        """A step that reads prompts beside answers took so long."""
        row, known = seconds / len(step.batch), self._prompt_row
        if not step.built and len(step.batch) >= MANY:
            row = self._prompt_row = row if known is None else known + DRIFT * (min(row, OUTLIER * known) - known)
        plain = self._costs.seconds(len(outputs)) if step.drafted else None
        if plain is not None:
            counts = {output.sequence.key: (output.drafted, output.accepted) for output in outputs}
            self._budget.note(counts, 1 + sum(n for n, _ in counts.values()) * (known or row) / plain)

    def leave_out(self, seconds: float) -> None:
        """So long something else was done between two steps: what lies between their tokens is no cost of rows."""
        self._collected_at += seconds

    def draft(self, outputs: Sequence[StepOutput]) -> bool:
        """Choose the drafts of the next step, while none is in flight; whether there are any.

        `outputs`: of the step that was collected.
        """
        if self._rest:
            self._rest -= 1
            return False
        begin = self._clock()
        answers = [output.sequence for output in outputs if output.goes_on]
        drafts = self._queue.propose(answers)
        if not drafts:
            return False
        asking = self._clock() - begin
        sources = any(_source(sequence) is not None for sequence in answers)
        lengths: dict[int, int] = {}
        self._first_guesses = {
            key: draft.tokens[0] for key, draft in drafts.items() if draft.tokens and not draft.forced & 1
        }
        if sources or any(draft.tokens for draft in drafts.values()):
            lengths = self._lengths(answers, drafts, sources=sources)
        for key, length in lengths.items():
            generation = self._queue.running[key]
            assert isinstance(generation, Generation), "the only kind that drafts"
            generation.draft, generation.draft_forced = tuple(drafts[key].tokens[:length]), drafts[key].forced
        drafted = any(lengths.values())
        if not drafted and (plain := self._costs.seconds(len(answers))) is not None:
            self._fruitless += 1
            self._rest = min(int(asking / (ASKING * plain)), self._fruitless // PATIENCE, LONGEST_REST)
        return drafted

    def _lengths(
        self, answers: Sequence[ScheduledRequest], drafts: dict[int, Draft], *, sources: bool
    ) -> dict[int, int]:
        """How much of each draft to verify. Those of sources are added to the drafts."""
        lengths = {key: len(draft.tokens) for key, draft in drafts.items() if draft.chances is None}
        n_rows = len(answers) + sum(lengths.values())
        # Of an answer with a step prepared, one row is submitted already.
        forced = sum(max(0, answer.known - answer.submitted + answer.awaited - 1) for answer in answers)
        running = self._queue.running
        alone = all(each.decoding for each in running.values())
        # Steps without drafts come now and then, so that drafts are compared with what these take now.
        prices = self._costs.prices(n_rows, forced) if alone else self._prices_beside(n_rows, forced)
        if prices is None:
            return lengths
        most = {key: self._budget.most(key, prices) for key in drafts}
        made = self._made(drafts, most, prices) if sources and alone else {}
        for key, draft in made.items():
            generation = running[key]
            assert isinstance(generation, Generation), "the only kind that drafts"
            try:
                drafts[key] = constrained(draft, generation.constraint, MAX_DRAFT)
            except Exception as error:
                self._queue.end(generation, error)
                del drafts[key]
                lengths.pop(key, None)
        chances = {key: draft.chances[: most[key]] for key, draft in drafts.items() if draft.chances}
        return lengths | draft_lengths(prices, chances, self._max_outputs - n_rows)

    def _made(self, drafts: Mapping[int, Draft], most: Mapping[int, int], prices: StepPrices) -> dict[int, Draft]:
        """The drafts of sources, for answers that may lose what these cost."""
        begin = self._clock()
        left = {key: self._budget.left(key, prices) for key in drafts if most[key]}
        made, guessing = _by_sources(self._queue.running, left, prices)
        self.leave_out(self._clock() - begin)  # no cost of rows
        self._budget.note_guessing({key: len(draft.tokens) for key, draft in made.items()}, guessing / prices.plain)
        return made

    def _prices_beside(self, n_rows: int, forced: int) -> StepPrices | None:
        """What drafts cost beside prompts; None where that is not known.

        The step is long whatever an answer does, and a right guess saves a row of a later one: so rows of a draft are
        added to what a step of these answers alone would take.
        """
        plain, row = self._costs.seconds(n_rows + forced), self._prompt_row
        if plain is None or row is None:
            return None
        return StepPrices(n_rows, plain, lambda rows: plain + (rows - n_rows) * row)


def _by_sources(
    running: Mapping[int, ScheduledRequest], left: Mapping[int, float], prices: StepPrices
) -> tuple[dict[int, Draft], float]:
    """(the drafts of sources, by key; the seconds that guessing took), side by side for answers of one source."""
    by_source: dict[DraftSource, dict[int, Drafter | None]] = {}
    for key in left:
        generation = running[key]
        if isinstance(generation, Generation) and (source := _source(generation)) is not None:
            by_source.setdefault(source, {})[key] = generation.drafter
    made: dict[int, Draft] = {}
    seconds = 0.0
    for source, asked in by_source.items():
        drafts, took = source.make(asked, prices, left)
        made |= drafts
        seconds += took
    return made, seconds


def _source(request: ScheduledRequest) -> DraftSource | None:
    """What makes a request's drafts beside what its drafter proposes."""
    return request.drafter.source if isinstance(request, Generation) and request.drafter is not None else None
