"""From a plan to a batch: whose inputs are in which rows, and whose logits come out in which order. Numbers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ollama_engine.input import Batch, Int32Array
from ollama_engine.runner.scheduler import Piece
from ollama_engine.runner.sequence import Sequence

__all__ = ["Part", "Step", "assemble"]


class Part(NamedTuple):
    """A sequence's share of a step."""

    sequence: Sequence
    epoch: int
    """The sequence's, when the step was planned."""
    slot: int
    begin: int
    """Its first input's position."""
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

    @property
    def alive(self) -> bool:
        """Whether any sequence still wants its part."""
        return any(part.alive for part in self.parts)

    def tokens(self) -> Int32Array:
        """The batch's tokens, as far as they are known by now."""
        if all(part.n == 1 for part in self.parts):
            return np.array([part.sequence.token(part.begin) if part.alive else 0 for part in self.parts], np.int32)
        return np.concatenate([_tokens_of(part) for part in self.parts])

    @property
    def prompt_tokens(self) -> int:
        """Rows of prompts."""
        return sum(part.n for part in self.parts if not part.decoding)


def _tokens_of(part: Part) -> Int32Array:
    return part.sequence.tokens(part.begin, part.n) if part.alive else np.zeros(part.n, dtype=np.int32)


def assemble(number: int, pieces: tuple[Piece, ...], sequences: Mapping[int, Sequence]) -> Step:
    """The step that computes these pieces; the sequences run. Tokens come later, see `Step.tokens`."""
    parts = tuple(_part(piece, sequences[piece.key]) for piece in pieces)
    if all(part.n == 1 for part in parts):
        positions = np.array([part.begin for part in parts], dtype=np.int32)
        slots = np.array([part.slot for part in parts], dtype=np.int32)
    else:
        positions = np.concatenate([np.arange(part.begin, part.begin + part.n, dtype=np.int32) for part in parts])
        slots = np.repeat(np.array([part.slot for part in parts], dtype=np.int32), [part.n for part in parts])
    batch = Batch(np.zeros_like(positions), positions, slots, _outputs(parts))
    return Step(number, batch, parts)


def _part(piece: Piece, sequence: Sequence) -> Part:
    assert sequence.slot is not None
    return Part(sequence, sequence.epoch, sequence.slot, sequence.submitted, piece.n, piece.outputs, sequence.decoding)


def _outputs(parts: tuple[Part, ...]) -> Int32Array:
    rows: list[int] = []
    end = 0
    for part in parts:
        end += part.n
        rows.extend(range(end - part.outputs, end))
    return np.array(rows, dtype=np.int32)
