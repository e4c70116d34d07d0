"""Batching: pieces become rows, and rows know whose they are."""

from __future__ import annotations

import numpy as np

from ollama_engine.runner.batching import assemble
from ollama_engine.runner.inputs import Inputs
from ollama_engine.runner.request import Ticket
from ollama_engine.runner.scheduler import Piece
from ollama_engine.runner.sequence import Sequence
from tests.runner.fakes import Events


def sequence(key: int, slot: int, tokens: list[int], submitted: int = 0, sampled: list[int] | None = None) -> Sequence:
    made = Sequence(ticket=Ticket(Events()), inputs=Inputs.text(tokens), num_ctx=99, key=key, slot=slot)
    made.submitted, made.sampled = submitted, sampled or []
    return made


def test_prompts_and_answers_in_one_batch() -> None:
    decoding = sequence(4, 7, [1, 2, 3], submitted=4, sampled=[50, 51])
    whole = sequence(5, 2, [10, 11, 12])
    part = sequence(6, 0, [20, 21, 22, 23, 24], submitted=1)
    step = assemble(9, (Piece(4, 1, 1), Piece(5, 3, 3), Piece(6, 2, 0)), {4: decoding, 5: whole, 6: part})
    assert step.number == 9
    assert step.batch.positions.tolist() == [4, 0, 1, 2, 1, 2]
    assert step.batch.sequences.tolist() == [7, 2, 2, 2, 0, 0]
    assert step.batch.outputs.tolist() == [0, 1, 2, 3]
    assert step.tokens().tolist() == [51, 10, 11, 12, 21, 22]
    assert step.tokens().dtype == np.int32
    assert step.prompt_tokens == 5
    assert [part.decoding for part in step.parts] == [True, False, False]


def test_only_the_last_row_of_a_prompt_has_logits() -> None:
    step = assemble(0, (Piece(1, 3, 1), Piece(2, 2, 1)), {1: sequence(1, 0, [1, 2, 3]), 2: sequence(2, 1, [4, 5])})
    assert step.batch.outputs.tolist() == [2, 4]


def test_tokens_are_read_when_the_step_starts() -> None:
    """A step is planned before the token that it computes is known."""
    one = sequence(1, 0, [5], submitted=1)
    step = assemble(0, (Piece(1, 1, 1),), {1: one})
    one.submitted += 1
    assert step.tokens().tolist() == [0]
    one.sampled.append(42)
    assert step.tokens().tolist() == [42]


def test_who_has_left_computes_nothing_of_value() -> None:
    gone, here = sequence(1, 0, [5, 6]), sequence(2, 1, [7])
    step = assemble(0, (Piece(1, 2, 1), Piece(2, 1, 1)), {1: gone, 2: here})
    gone.epoch += 1
    assert step.tokens().tolist() == [0, 0, 7]
    assert step.alive
    here.epoch += 1
    assert not step.alive
