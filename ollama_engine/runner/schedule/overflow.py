"""Plans for a full context: shift, truncation, eviction. Pure arithmetic, before the batch, in whole groups."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from ollama_engine.errors import ContextOverflowError, Option
from ollama_engine.runner.request.inputs import Group, ceil_cut, floor_cut

__all__ = ["Shift", "Truncation", "plan_eviction", "plan_shift", "plan_truncation"]

NUM_CTX, NUM_KEEP = Option("num_ctx"), Option("num_keep")
LESS_OR_MORE = (("lower ", NUM_KEEP), ("choose a larger ", NUM_CTX))


class Shift(NamedTuple):
    """Drop the inputs [keep, keep + discard); later ones move down by `discard`."""

    keep: int
    discard: int


class Truncation(NamedTuple):
    """The range of inputs `dropped` leaves a prompt; it is empty when the prompt fits."""

    keep: int
    """Inputs kept at the beginning: `num_keep`, or fewer where that is within a group or beyond the prompt. Later
    shifts keep as many."""
    dropped: range


def plan_shift(n_tokens: int, num_keep: int, num_ctx: int, groups: Sequence[Group] = (), need: int = 1) -> Shift:
    """The context shift of a sequence of `n_tokens` computed inputs, after which `need` more fit into `num_ctx`.

    It discards the oldest half behind the first `num_keep`, or more where `need` requires it, rounded up to whole
    groups. Raises ContextOverflowError when `num_keep` leaves no room, or splits a group.
    """
    room = num_ctx - num_keep
    if need > room:
        raise ContextOverflowError(
            f"{need} more tokens do not fit: ",
            NUM_CTX,
            f" is {num_ctx}, of which ",
            NUM_KEEP,
            f" holds {num_keep}",
            advice=LESS_OR_MORE,
        )
    if not 0 <= num_keep < n_tokens:
        raise ContextOverflowError(
            NUM_KEEP,
            f" is 0 or more, and less than the {n_tokens} tokens of a sequence that is to discard some, got {num_keep}",
        )
    if floor_cut(num_keep, groups) != num_keep:
        raise ContextOverflowError(
            NUM_KEEP,
            f" {num_keep} ends within inputs {floor_cut(num_keep, groups)} to {ceil_cut(num_keep, groups)}, "
            "which belong together (one image); keep all of them or none",
        )
    half = max(1, (n_tokens - num_keep) // 2)
    end = ceil_cut(num_keep + max(half, n_tokens + need - num_ctx), groups)
    return Shift(num_keep, end - num_keep)


def plan_truncation(n_inputs: int, num_ctx: int, num_keep: int, groups: Sequence[Group] = ()) -> Truncation:
    """The truncation of a prompt to `num_ctx`: it keeps the first `num_keep` inputs and the newest of the rest.

    A group stays or leaves as a whole. Raises ContextOverflowError when `num_keep` leaves no room for the last input
    and its group.
    """
    if not 0 <= num_keep < num_ctx:
        raise ContextOverflowError(NUM_KEEP, f" is 0 to {num_ctx - 1} (below ", NUM_CTX, f"), got {num_keep}")
    keep = floor_cut(min(num_keep, n_inputs), groups)
    if n_inputs <= num_ctx:
        return Truncation(keep, range(keep, keep))
    begin = ceil_cut(n_inputs - (num_ctx - keep), groups)
    if begin >= n_inputs:
        last = n_inputs - floor_cut(n_inputs - 1, groups)
        raise ContextOverflowError(
            f"the last {last} inputs of the prompt belong together (one image) and do not fit beside ",
            NUM_KEEP,
            f" {keep}: ",
            NUM_CTX,
            f" is {num_ctx}",
            advice=LESS_OR_MORE,
        )
    return Truncation(keep, range(keep, begin))


def plan_eviction(candidates: Sequence[int], fits: Callable[[Collection[int]], bool]) -> list[int] | None:
    """The candidates to evict so that a request fits; None where evicting all of them is not enough.

    Evicts the first candidates first (least recently used), and as few as possible: none of the evicted could stay.
    `fits(removed)` must be monotonic: removing more never makes it False.
    """
    if fits(()):
        return []
    if not candidates or not fits(candidates):
        return None
    enough = 1 + bisect_left(range(1, len(candidates)), True, key=lambda n: fits(candidates[:n]))
    leaving = list(candidates[:enough])
    for candidate in leaving[-2::-1]:  # the last one is needed
        others = [other for other in leaving if other != candidate]
        if fits(others):
            leaving = others
    return leaving
