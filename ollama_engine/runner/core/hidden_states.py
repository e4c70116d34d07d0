"""Hidden states of a step, for drafters that guess from them."""

from __future__ import annotations

from contextlib import suppress

from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.sequence import Generation
from ollama_engine.runner.schedule.steering import HiddenReader

__all__ = ["give_hidden"]


def give_hidden(step: Step, executor: Executor) -> None:
    """Give each answer's drafter the hidden states of its rows, while the results of the step are read.

    They are those of rows with logits, or of all rows, such as those of a prompt.

    The step is sampled: rows of wrong guesses are no inputs of their sequence any more.
    """
    if executor.splits is None:
        return
    row = at = 0
    for entry in step.entries:
        row, at, n_drawn = row + entry.outputs, at + entry.n, entry.outputs - entry.read
        if not n_drawn or not entry.alive or not isinstance(entry.sequence, Generation):
            continue
        reader: object = entry.sequence.drafter
        if not isinstance(reader, HiddenReader) or not (n_read := reader.reads):
            continue
        n, end = (entry.n, at) if executor.hidden_rows == len(step.batch) else (n_drawn, row)
        first = int(step.batch.positions[at - n])
        right = min(n, entry.sequence.submitted - first)
        left_out = max(0, right - n_read)
        with suppress(Exception):  # a gap, behind which the drafter begins anew; the step's tokens must not get lost
            slot = int(step.batch.sequences[at - 1])
            reader.read_hidden(first + left_out, executor.hidden(end - n + left_out, end - n + right), slot)
