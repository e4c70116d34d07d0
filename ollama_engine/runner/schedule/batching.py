"""From a plan to a batch: whose inputs are in which rows, and whose logits come out in which order. Numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ollama_engine.input import Batch, Int32Array
from ollama_engine.runner.schedule.scheduler import Piece
from ollama_engine.runner.schedule.sequence import Generation, Sequence

__all__ = ["Part", "Step", "assemble", "follow"]


class Part(NamedTuple):
    """A sequence's share of a step. The batch has its positions."""

    sequence: Sequence
    epoch: int
    """The sequence's, when the step was planned."""
    slot: int
    n: int
    outputs: int
    """Rows with logits, the last ones of it."""
    decoding: bool

    @property
    def alive(self) -> bool:
        """Whether the sequence still wants it."""
        return self.epoch == self.sequence.epoch


@dataclass(slots=True)
class Step:
    """A batch and where its rows come from."""

    number: int
    batch: Batch
    parts: tuple[Part, ...]
    decoding: bool
    """Whether each part is the one next token of an answer."""
    n_followers: int | None = None
    """How many steps like this can follow before a sequence comes to a limit; None where nobody has asked."""

    @property
    def alive(self) -> bool:
        """Whether any sequence still wants its part."""
        return any(part.alive for part in self.parts)

    def tokens(self) -> Int32Array:
        """The batch's tokens, as far as they are known by now."""
        if len(self.parts) == len(self.batch):
            places = zip(self.parts, self.batch.positions.tolist(), strict=True)
            return np.array([part.sequence.token(at) if part.alive else 0 for part, at in places], np.int32)
        tokens = np.zeros(len(self.batch), np.int32)
        row = 0
        for part in self.parts:
            if part.alive:
                begin = int(self.batch.positions[row])
                tokens[row : row + part.n] = part.sequence.tokens(begin, part.n)
            row += part.n
        return tokens

    @property
    def prompt_tokens(self) -> int:
        """Rows of prompts."""
        return 0 if self.decoding else sum(part.n for part in self.parts if not part.decoding)

    def check(self) -> None:
        """Raise AssertionError unless what is prepared is what its sequences want next; for tests and debugging."""
        row = 0
        for part in self.parts:
            end = int(self.batch.positions[row]) + part.n
            assert not part.alive or end == part.sequence.submitted, "a prepared part ends where its sequence goes on"
            row += part.n


def assemble(number: int, pieces: tuple[Piece, ...], sequences: Mapping[int, Sequence]) -> Step:
    """The step that computes these pieces; the sequences run. Tokens come later, see `Step.tokens`."""
    chosen = [sequences[piece.key] for piece in pieces]
    parts = tuple(_part(piece, one) for piece, one in zip(pieces, chosen, strict=True))
    begins = [one.submitted for one in chosen]
    if all(part.n == 1 for part in parts):
        positions = np.array(begins, dtype=np.int32)
        slots = np.array([part.slot for part in parts], dtype=np.int32)
    else:
        runs = [np.arange(at, at + part.n, dtype=np.int32) for part, at in zip(parts, begins, strict=True)]
        positions = np.concatenate(runs)
        slots = np.repeat(np.array([part.slot for part in parts], dtype=np.int32), [part.n for part in parts])
    batch = Batch(np.zeros_like(positions), positions, slots, _outputs(parts))
    return Step(number, batch, parts, all(part.decoding for part in parts))


def _part(piece: Piece, sequence: Sequence) -> Part:
    assert sequence.slot is not None
    return Part(sequence, sequence.epoch, sequence.slot, piece.n, piece.outputs, sequence.decoding)


def _outputs(parts: tuple[Part, ...]) -> Int32Array:
    rows: list[int] = []
    end = 0
    for part in parts:
        end += part.n
        rows.extend(range(end - part.outputs, end))
    return np.array(rows, dtype=np.int32)


def follow(number: int, step: Step) -> Step | None:
    """The step after `step`, which computes, where all it serves are answers that go on: the next token of each.

    It is what planning and assembling anew would come to where nobody else runs, at a fraction of the cost. None where
    a sequence has left, or may end with the tokens that are under way.
    """
    if not step.decoding or not all(part.alive for part in step.parts):
        return None
    left = _n_followers(step) if step.n_followers is None else step.n_followers
    if left < 1:
        return None
    batch = Batch(step.batch.tokens, step.batch.positions + np.int32(1), step.batch.sequences, step.batch.outputs)
    return Step(number, batch, step.parts, True, left - 1)


def _n_followers(step: Step) -> int:
    left = [one.places if isinstance(one := part.sequence, Generation) else 0 for part in step.parts]
    return min(left)
