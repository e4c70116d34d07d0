"""Prompts that come together and begin alike: one of them is computed, and the others share it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ollama_engine.runner.request.inputs import Inputs, common_media
from ollama_engine.runner.schedule.sequence import ScheduledRequest

__all__ = ["MOST_KEPT", "WORTH", "SharedPrompt", "shares_soon"]

WORTH = 64
"""Least inputs to wait for: fewer are computed in one step, beside those of others."""
MOST_KEPT = 16
"""Recurrent states that are kept in one prompt; where more requests part from it, they go on from the state before."""


@dataclass(frozen=True, slots=True)
class SharedPrompt:
    """What a waiting request shares with a running one: the first `n` inputs of the two prompts."""

    leader: ScheduledRequest
    prompt: Inputs
    own: Inputs
    n: int


def shares_soon(
    request: ScheduledRequest, running: Iterable[ScheduledRequest], cached: Callable[[ScheduledRequest], int]
) -> bool:
    """Whether a running request is about to compute what a waiting one begins with, too: then the second waits.

    Not where the cache has almost as many of its inputs from an earlier request. Where the two part, a recurrent model
    keeps its state. Prompts are compared once: a thousand questions about one long text wait for many steps.
    """
    if _still_waits(request):
        return True
    if not request.options.cache or (request.pinned is not None and request.pinned.slot is not None):
        return False
    limit = request.inputs.most_reusable(request.rows_from)
    for leader in running:
        most, least = min(limit, leader.n_inputs), max(WORTH, leader.submitted + 1)
        if least > most or not leader.leaves_history:
            continue
        if leader.options.priority < request.options.priority:
            continue  # it may have to wait for others itself
        n = _common(leader.inputs, request.inputs, least, most)
        if n and (leader.submitted >= (have := cached(request)) or n - have >= WORTH):
            if n not in leader.checkpoints and len(leader.checkpoints) < MOST_KEPT:
                leader.checkpoints = (*leader.checkpoints, n)
            request.shares = SharedPrompt(leader, leader.inputs, request.inputs, n)
            return True
    return False


def _still_waits(request: ScheduledRequest) -> bool:
    """Whether the request that it waited for before still runs, and has not come to where the two part."""
    shared = request.shares
    if shared is None:
        return False
    leader = shared.leader
    waits = (
        leader.slot is not None and not leader.ended and leader.submitted < shared.n
        and leader.inputs is shared.prompt and request.inputs is shared.own
        and leader.options.priority >= request.options.priority
    )  # fmt: skip
    request.shares = shared if waits else None
    return waits


def _common(a: Inputs, b: Inputs, least: int, most: int) -> int:
    """How many of the first `most` inputs are the same, if at least `least`; else 0."""
    if a.namespace != b.namespace or a.tokens[least - 1] != b.tokens[least - 1]:
        return 0
    differs = a.tokens[:most] != b.tokens[:most]
    first = int(differs.argmax())
    n = first if differs[first] else most
    n = common_media((span.identity for span in a.media), (span.identity for span in b.media), n)
    return n if n >= least else 0
