"""Makes a batch from a plan: one row for each input, the rows of a sequence side by side. Numbers only.

    entries      A decodes   B: end of a prompt    C decodes, one draft token
    row          0           1    2    3           4    5
    positions    7           0    1    2           9    10
    sequences    2           0    0    0           5    5      the entry's slot: its cache sequence
    outputs      0                     3           4    5      rows with logits: the last ones of each entry
    needed       40                    40          0    0      best logits to fetch, one number for each output; 0: all

Row j of the logits belongs to row `outputs[j]` of the batch. A part that does not end its prompt has no output, unless
a row reader wants some.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ollama_engine.input import Batch, BatchMedia, Int32Array, MediaTraits
from ollama_engine.runner.request.inputs import spans_between
from ollama_engine.runner.schedule.checkpoints import MOST_RETURNS, checkpoints_between, rows_at_multiples
from ollama_engine.runner.schedule.scheduler import Scheduled
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest

__all__ = ["TEXT_ONLY", "Step", "StepEntry", "all_that_goes_on", "assemble", "best_needed", "follow"]

TEXT_ONLY = MediaTraits()
FEW = 64
"""Up to so many rows Python counts faster than numpy makes an array for each entry."""


class StepEntry(NamedTuple):
    """One sequence's part of a step. Its positions are in the batch."""

    sequence: ScheduledRequest
    epoch: int
    """The sequence's epoch when the step was planned."""
    slot: int
    n: int
    outputs: int
    """Number of rows with logits: the last rows of this entry."""
    decoding: bool
    read: int = 0
    """The first so many of these rows are for the sequence's row reader; tokens are drawn from the others."""

    @property
    def alive(self) -> bool:
        """Whether the sequence still wants the result: it has not left since planning."""
        return self.epoch == self.sequence.epoch


@dataclass(slots=True)
class Step:
    """A batch, and the sequences that its rows belong to."""

    number: int
    batch: Batch
    entries: tuple[StepEntry, ...]
    decoding: bool
    """Whether every entry is the next token of an answer, without drafts."""
    drafted: bool = False
    """Whether any entry verifies a draft."""
    n_followers: int | None = None
    """Number of steps like this that can follow before a sequence reaches a limit; None: not computed yet."""
    needed: tuple[int, ...] = ()
    """How many of its best logits each row of logits needs; 0 for all."""
    constrained: bool = False
    """Whether any sequence has a constraint, whose mask its rows need."""
    recurrent: bool = False
    """Whether the model has recurrent states, of which checkpoints are kept."""
    built: bool = False
    """Whether a graph was built for it: what it takes is not what the next one of its shape takes."""

    @property
    def alive(self) -> bool:
        """Whether any sequence still wants its entry."""
        return any(entry.alive for entry in self.entries)

    def tokens(self) -> Int32Array:
        """The batch's token ids. Call it at launch: tokens of the step before are known only then."""
        if len(self.entries) == len(self.batch):
            places = zip(self.entries, self.batch.positions.tolist(), strict=True)
            return np.array([entry.sequence.token(at) if entry.alive else 0 for entry, at in places], np.int32)
        tokens = np.zeros(len(self.batch), np.int32)
        row = 0
        for entry in self.entries:
            if entry.alive:
                begin = int(self.batch.positions[row])
                tokens[row : row + entry.n] = entry.sequence.tokens(begin, entry.n)
            row += entry.n
        return tokens

    def sequence_at(self, row: int) -> ScheduledRequest:
        """The sequence whose input is this row of the batch. Raises IndexError beyond the last row."""
        for entry in self.entries:
            if row < entry.n:
                return entry.sequence
            row -= entry.n
        raise IndexError(row)

    @property
    def prompt_tokens(self) -> int:
        """Number of rows that are prompt tokens; the other rows decode."""
        return 0 if self.decoding else sum(entry.n for entry in self.entries if not entry.decoding)

    def check(self) -> None:
        """Raise AssertionError unless the step is what its sequences want next; for tests and debugging."""
        row = 0
        for entry in self.entries:
            end = int(self.batch.positions[row]) + entry.n
            assert not entry.alive or end == entry.sequence.submitted, (
                "a prepared entry ends where its sequence goes on"
            )
            row += entry.n


def assemble(
    number: int,
    scheduled: tuple[Scheduled, ...],
    sequences: Mapping[int, ScheduledRequest],
    traits: MediaTraits = TEXT_ONLY,
    *,
    recurrent: bool = False,
) -> Step:
    """The step for a plan, whose sequences are all running. Its tokens are read at launch, see `Step.tokens`."""
    chosen = [sequences[run.key] for run in scheduled]
    entries = tuple(_entry(run, sequence) for run, sequence in zip(scheduled, chosen, strict=True))
    begins = [sequence.submitted for sequence in chosen]
    positions = _positions(entries, begins)
    slots = np.repeat(np.array([entry.slot for entry in entries], dtype=np.int32), [entry.n for entry in entries])
    media = _media(entries, begins) if any(sequence.inputs.media for sequence in chosen) else ()
    batch = Batch(
        np.zeros_like(positions),
        positions,
        slots,
        _outputs(entries),
        blocks=_blocks(media, len(positions)) if traits.bidirectional else None,
        images=_images(media),
        media=media,
        axes=_axes(entries, begins, traits.position_axes) if traits.position_axes > 1 else None,
        checkpoints=_checkpoints(entries, begins) if recurrent else None,
        returns=_returns(entries, begins) if recurrent else None,
        in_place=len(positions) == len(entries),
    )
    decoding = all(entry.decoding and entry.n == entry.outputs == 1 for entry in entries)
    constrained = any(isinstance(sequence, Generation) and sequence.constraint is not None for sequence in chosen)
    drafted = any(entry.decoding and entry.outputs > 1 for entry in entries)
    return Step(
        number, batch, entries, decoding, drafted, needed=_needed(entries), constrained=constrained, recurrent=recurrent
    )


def _positions(entries: tuple[StepEntry, ...], begins: list[int]) -> Int32Array:
    """The position of each row."""
    runs = [range(at, at + entry.n) for entry, at in zip(entries, begins, strict=True)]
    if sum(map(len, runs)) > FEW:
        return np.concatenate([np.arange(run.start, run.stop, dtype=np.int32) for run in runs])
    return np.array([at for run in runs for at in run], dtype=np.int32)


def all_that_goes_on(sequences: Collection[ScheduledRequest], most: int) -> tuple[Scheduled, ...] | None:
    """What these sequences have next, if all of them decode and that is `most` inputs at most; otherwise None.

    It is what `scheduler.plan` chooses then, at a fraction of the cost.
    """
    scheduled, left = [], most
    for sequence in sequences:
        begin, known = sequence.submitted, sequence.known
        end = known + len(sequence.draft)
        if not sequence.n_inputs <= begin < known or end > sequence.num_ctx:
            return None
        scheduled.append(Scheduled(sequence.key, end - begin, end - known + 1))
        left -= end - begin
    return tuple(scheduled) if left >= 0 else None


def _checkpoints(entries: tuple[StepEntry, ...], begins: list[int]) -> Int32Array | None:
    """The rows behind which recurrent states are kept."""
    rows: list[int] = []
    row = 0
    for entry, begin in zip(entries, begins, strict=True):
        kept = checkpoints_between(entry.sequence.checkpoints, begin, begin + entry.n)
        rows += [row + at - begin - 1 for at in kept]
        row += entry.n
    return np.array(sorted(rows), dtype=np.int32) if rows else None


def _returns(entries: tuple[StepEntry, ...], begins: list[int]) -> Int32Array | None:
    """Rows that a guess follows, up to MOST_RETURNS of each draft: a sequence goes on there if that guess is wrong."""
    rows: list[int] = []
    row = 0
    for entry, begin in zip(entries, begins, strict=True):
        if entry.decoding:
            first = row + entry.sequence.known - begin - 1
            rows += range(max(row, first), min(row + entry.n - 1, first + MOST_RETURNS))
        row += entry.n
    return np.array(rows, dtype=np.int32) if rows else None


def _media(entries: tuple[StepEntry, ...], begins: list[int]) -> tuple[BatchMedia, ...]:
    """The media items of a batch, by row."""
    media, row = [], 0
    for entry, begin in zip(entries, begins, strict=True):
        for span in spans_between(entry.sequence.inputs.media, begin, begin + entry.n):
            media.append(BatchMedia(row + span.begin - begin, span.end - span.begin, span.item, span.offset))
        row += entry.n
    return tuple(media)


def _blocks(media: tuple[BatchMedia, ...], n: int) -> Int32Array | None:
    """For each row the number of its block, the media item whose inputs attend to each other; None without blocks."""
    parts = [part for part in media if not part.item.cross_attention]
    if not parts:
        return None
    blocks = np.full(n, -1, dtype=np.int32)
    for number, part in enumerate(parts):
        blocks[part.row : part.row + part.n] = number
    return blocks


def _images(media: tuple[BatchMedia, ...]) -> Int32Array | None:
    rows = [part.row for part in media if part.item.cross_attention]
    return np.array(rows, dtype=np.int32) if rows else None


def _axes(entries: tuple[StepEntry, ...], begins: list[int], axes: int) -> Int32Array:
    """Positions for rotation, int32 [axes, rows]."""
    runs = zip(entries, begins, strict=True)
    return np.concatenate([entry.sequence.inputs.axis_positions(at, entry.n, axes) for entry, at in runs], axis=1)


def _entry(run: Scheduled, sequence: ScheduledRequest) -> StepEntry:
    assert sequence.slot is not None
    decoding = sequence.decoding
    drawn = run.outputs if decoding else int(sequence.answers and sequence.submitted + run.n == sequence.n_inputs)
    return StepEntry(sequence, sequence.epoch, sequence.slot, run.n, run.outputs, decoding, run.outputs - drawn)


def _outputs(entries: tuple[StepEntry, ...]) -> Int32Array:
    rows: list[int] = []
    end = 0
    for entry in entries:
        end += entry.n
        rows.extend(range(end - entry.outputs, end))
    return np.array(rows, dtype=np.int32)


def _needed(entries: tuple[StepEntry, ...]) -> tuple[int, ...]:
    """For each row of logits how many of its best are needed; a row reader looks at all of its rows."""
    needed: list[int] = []
    for entry in entries:
        needed += [0] * entry.read + [best_needed(entry.sequence)] * (entry.outputs - entry.read)
    return tuple(needed)


def best_needed(sequence: ScheduledRequest) -> int:
    """How many of the best logits of a row are enough to draw a token of this sequence; 0: all of them.

    Masks, processors and log-probabilities are about all tokens.
    """
    if not isinstance(sequence, Generation) or sequence.constraint is not None or sequence.processors is not None:
        return 0
    return 0 if sequence.params.logprobs is not None else sequence.sampler.best_needed


def follow(number: int, step: Step) -> Step | None:
    """The step after `step`, which is in flight, if all its sequences only continue: one more token for each.

    It equals the result of planning and assembling where no other sequence runs, at a fraction of the cost. None where
    a sequence has left, or may end with the tokens of the step in flight.
    """
    if not step.decoding or not all(entry.alive for entry in step.entries):
        return None
    left = _n_followers(step) if step.n_followers is None else step.n_followers
    if left < 1:
        return None
    before = step.batch
    axes = None if before.axes is None else before.axes + np.int32(1)
    positions = before.positions + np.int32(1)
    kept = rows_at_multiples(positions) if step.recurrent else None
    batch = Batch(
        before.tokens, positions, before.sequences, before.outputs, axes=axes, checkpoints=kept,
        in_place=before.in_place,
    )  # fmt: skip
    return Step(number, batch, step.entries, True, False, left - 1, step.needed, step.constrained, step.recurrent)


def _n_followers(step: Step) -> int:
    left = [generation.places if isinstance(generation := entry.sequence, Generation) else 0 for entry in step.entries]
    return min(left)
