"""Checkpoints: at which inputs a recurrent model's states are kept, so that later requests can go on from there. Pure.

A prompt that shares a prefix with an earlier one goes on from the last checkpoint within that prefix, so they are where
prompts part: at ends of messages, right before the last input (another answer to the same prompt), where an earlier
prompt has parted already, and every `EVERY` inputs. One is at the end of a prompt's last whole block, up to which a
prefix store keeps it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import numpy as np

from ollama_engine.input import Int32Array
from ollama_engine.runner.request.inputs import Inputs, floor_cut
from ollama_engine.runner.schedule.prefix_blocks import BLOCK

__all__ = ["EVERY", "MOST_RETURNS", "checkpoints_between", "plan_checkpoints", "rows_at_multiples"]

EVERY = 512
"""Inputs from one checkpoint to the next in a long text."""

MOST_RETURNS = 4
"""Rows of a draft behind which a state is kept, the first ones. A state is written in a fraction of the time that a row
takes; but it takes memory, and guesses get less likely from one to the next. Where a later one is wrong, the right ones
behind the last state are computed again, in the next step."""

LAST_MESSAGES = 3
"""How many ends of messages are kept, beside that of the first one: the system's message, which many prompts share."""


def plan_checkpoints(inputs: Inputs, ends: Collection[int], parted: Iterable[int] = ()) -> tuple[int, ...]:
    """Where states of a prompt are kept beside the multiples of EVERY: numbers of inputs before, ascending.

    `ends`: tokens that end a message. `parted`: lengths at which earlier prompts part from this one.
    """
    found = np.flatnonzero(np.isin(inputs.tokens, np.fromiter(ends, np.int32))) + 1 if ends else np.empty(0, np.int64)
    messages = {int(end) for end in (*found[:1], *found[-LAST_MESSAGES:])}
    last = len(inputs) - 1
    wanted = {*messages, *parted, last, last // BLOCK * BLOCK}
    return tuple(sorted(at for at in wanted if 0 < at < len(inputs) and floor_cut(at, inputs.groups) == at))


def checkpoints_between(planned: Iterable[int], begin: int, end: int) -> list[int]:
    """The checkpoints of inputs (begin, end]: those planned, and multiples of EVERY; not in any order."""
    return list({
        *(at for at in planned if begin < at <= end),
        *range((begin // EVERY + 1) * EVERY, end + 1, EVERY),
    })  # fmt: skip


def rows_at_multiples(positions: Int32Array) -> Int32Array | None:
    """The rows of a decoding step behind which states are kept; None where there is none."""
    rows = [row for row, at in enumerate(positions.tolist()) if (at + 1) % EVERY == 0]
    return np.array(rows, dtype=np.int32) if rows else None
