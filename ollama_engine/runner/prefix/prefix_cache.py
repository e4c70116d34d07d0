"""Histories: which inputs' keys and values each cache sequence holds, and who may reuse them. Bookkeeping only.

A sequence is free, live (a request writes it) or finished (kept for whoever begins alike, until evicted). A history
lists the inputs at positions 0, 1, 2, ... A new request takes the longest beginning of any history, live ones
included: the caller lets it share those cells, no data moves.

The caller moves the cells. It may extend a history as soon as the batch that computes the inputs is submitted, as
whatever reads their cells is computed after it; when that batch fails, it truncates this history and those that took
the inputs over meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from ollama_engine.input import Int32Array
from ollama_engine.runner.prefix.cached_sequence import History, State
from ollama_engine.runner.schedule.inputs import Inputs, floor_cut

__all__ = ["Histories", "Prefix", "Resumable", "Start", "Taken"]

Resumable = Callable[[int, int], int]
"""(sequence, length) -> the greatest length up to it from which the cache can go on; for caches that forget."""


class Prefix(NamedTuple):
    """What of a prompt is in the cache already."""

    sequence: int | None
    """Whose cells; None when nothing is."""
    length: int


class Taken(NamedTuple):
    """A sequence that is the caller's now, its history empty."""

    sequence: int
    evicted: bool
    """Whether it held a history until now: remove all its cells."""


class Start(NamedTuple):
    """How a request begins, in the order in which the caller does it."""

    sequence: int
    """The request's own from now on."""
    remove_from: int | None
    """Remove its cells from this position on; None: nothing to remove."""
    source: int | None
    """Then let it share this sequence's first `length` cells; None: it has them, or there are none."""
    length: int
    """Inputs that need not be computed."""


class Histories:
    """Histories of `n_sequences` cache sequences, all free at first. Times are the caller's, in any unit.

    Methods raise ValueError for a sequence that does not exist or is not in the state they need; nothing changes then.
    """

    def __init__(self, n_sequences: int) -> None:
        if n_sequences < 1:
            raise ValueError(f"there is at least one sequence, got {n_sequences}")
        self._histories = [History() for _ in range(n_sequences)]

    # -- looking -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._histories)

    def length(self, sequence: int) -> int:
        """How many inputs the sequence holds."""
        return len(self._of(sequence).tokens)

    def state(self, sequence: int) -> State:
        """Whether it is free, live or finished."""
        return self._of(sequence).state

    def pinned(self, sequence: int) -> bool:
        """Whether something keeps it from being evicted."""
        return self._of(sequence).pins > 0

    def tokens(self, sequence: int) -> Int32Array:
        """A copy of the tokens, [length]."""
        return np.array(self._of(sequence).tokens, dtype=np.int32)

    def longest_prefix(self, inputs: Inputs, resumable: Resumable | None = None) -> Prefix:
        """The most inputs at the beginning of `inputs` that some history holds, and where. Changes nothing.

        Never all of them, for the last one's logits are wanted, and never up to within a group. Of several equally
        long, the one of the lowest sequence.
        """
        limit = floor_cut(max(0, len(inputs) - 1), inputs.groups)
        best, length = None, 0
        for sequence, history in enumerate(self._histories):
            if length == limit:
                break
            n = min(history.reusable, limit)
            # To be longer than the best, it must go on like the prompt where the best ends.
            if n <= length or history.tokens[length] != inputs.tokens[length]:
                continue
            n = history.common(inputs, n)
            n = _resumable_cut(sequence, n, inputs, resumable)
            if n > length:
                best, length = sequence, n
        return Prefix(best, length)

    def common(self, sequence: int, inputs: Inputs, limit: int, resumable: Resumable | None = None) -> int:
        """How many of the first `limit` of `inputs` the sequence holds and can go on from. Changes nothing.

        For the one whose history it is: unlike `longest_prefix` this counts what a shift left.
        """
        history = self._of(sequence)
        n = history.common(inputs, min(len(history), limit))
        return _resumable_cut(sequence, n, inputs, resumable)

    def exact(self, sequence: int) -> int | None:
        """How many inputs are as if nothing had been shifted out; None: all."""
        return self._of(sequence).exact

    @property
    def has_free(self) -> bool:
        """Whether there is a sequence that holds nothing."""
        return any(history.state == "free" for history in self._histories)

    def evict_candidates(self) -> list[int]:
        """Finished histories that nothing pins, the least recently used first. Changes nothing."""
        found = [(history.used_at, sequence) for sequence, history in enumerate(self._histories) if history.evictable]
        return [sequence for _, sequence in sorted(found)]

    # -- taking and giving back ----------------------------------------------------------------------------------------

    def begin(self, inputs: Inputs, now: float, resumable: Resumable | None = None) -> Start | None:
        """A live sequence for a request that holds the longest prefix of `inputs` there is; None when all are in use.

        A finished history that is a prefix as a whole goes on as it is; of any other the beginning is shared.
        """
        source, length = self.longest_prefix(inputs, resumable)
        if source is None:
            return self.begin_empty(now)
        history = self._histories[source]
        if history.evictable and length == len(history.tokens):
            history.state, history.used_at = "live", now
            return Start(source, None, None, length)
        taken = self.take(now, spare=source)
        if taken is None and not history.evictable:
            return None
        history.used_at = now
        if taken is None:
            # Its end is all there is to give up.
            history.state = "live"
            history.truncate(length)
            return Start(source, length, None, length)
        self.share(source, taken.sequence, length)
        return Start(taken.sequence, 0 if taken.evicted else None, source, length)

    def begin_empty(self, now: float) -> Start | None:
        """A live sequence that reuses nothing; None when all are in use."""
        taken = self.take(now)
        return None if taken is None else Start(taken.sequence, 0 if taken.evicted else None, None, 0)

    def take(self, now: float, spare: int | None = None) -> Taken | None:
        """A live, empty sequence: a free one, else the least recently used finished one; None when all are in use.

        `spare` is not evicted.
        """
        sequence = next((i for i, history in enumerate(self._histories) if history.state == "free"), None)
        evicted = sequence is None
        if sequence is None:
            sequence = next((i for i in self.evict_candidates() if i != spare), None)
        if sequence is None:
            return None
        self._histories[sequence] = History(state="live", used_at=now)
        return Taken(sequence, evicted)

    def share(self, source: int, target: int, length: int) -> None:
        """Give an empty live sequence the first `length` inputs of another: a fork. The caller shares the cells."""
        self._live(target).copy_from(self._of(source), length)

    def restore(self, sequence: int, inputs: Inputs, exact: int | None) -> None:
        """Give an empty live sequence a history that was saved, `exact` of it. The caller restores the cells."""
        history = self._live(sequence)
        if history.tokens:
            raise ValueError(f"sequence {sequence} holds {len(history)} inputs already")
        history.extend(inputs)
        history.exact = exact

    def finish(self, sequence: int, now: float) -> None:
        """The request ended: its history stays until evicted. An empty one is free at once, unless pinned."""
        history = self._live(sequence)
        history.state, history.used_at = "finished", now
        self._free_if_idle(sequence)

    def resume(self, sequence: int, now: float) -> None:
        """A finished history goes on as a live one, as it is."""
        history = self._of(sequence)
        if history.state != "finished":
            raise ValueError(f"sequence {sequence} is {history.state}, only a finished one can be resumed")
        history.state, history.used_at = "live", now

    def release(self, sequence: int) -> None:
        """Forget the history: the sequence is free. The caller removes its cells."""
        history = self._of(sequence)
        if history.state == "free" or history.pins:
            raise ValueError(f"sequence {sequence} is {'pinned' if history.pins else 'free'} and cannot be released")
        self._histories[sequence] = History()

    def pin(self, sequence: int) -> None:
        """Keep it from being evicted until unpinned as often: a session holds on to it."""
        history = self._of(sequence)
        if history.state == "free":
            raise ValueError(f"sequence {sequence} is free, there is nothing to pin")
        history.pins += 1

    def unpin(self, sequence: int) -> None:
        """Undo one `pin`."""
        history = self._of(sequence)
        if not history.pins:
            raise ValueError(f"sequence {sequence} is not pinned")
        history.pins -= 1
        self._free_if_idle(sequence)

    # -- changing a history --------------------------------------------------------------------------------------------

    def append(self, sequence: int, token: int) -> None:
        """One more token of a live sequence."""
        self._live(sequence).tokens.append(token)

    def extend(self, sequence: int, inputs: Inputs) -> None:
        """More inputs of a live sequence."""
        self._live(sequence).extend(inputs)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the inputs from position `length` on, of a live or finished sequence."""
        self._of(sequence).truncate(length)
        self._free_if_idle(sequence)

    def shift(self, sequence: int, keep: int, discard: int) -> None:
        """Inputs [keep, keep + discard) leave, later ones move down. Only the first `keep` can be reused from now on.

        What stays has been computed in view of what left; another request would not get the tokens it gets alone.
        """
        self._live(sequence).shift(keep, discard)

    def check(self) -> None:
        """Raise AssertionError unless all is consistent; for tests and debugging."""
        for history in self._histories:
            history.check()

    # -- inside --------------------------------------------------------------------------------------------------------

    def _free_if_idle(self, sequence: int) -> None:
        """Nobody needs an empty finished history that nothing pins."""
        history = self._histories[sequence]
        if history.evictable and not history.tokens:
            self._histories[sequence] = History()

    def _of(self, sequence: int) -> History:
        if not 0 <= sequence < len(self._histories):
            raise ValueError(f"sequences are 0 to {len(self._histories) - 1}, got {sequence}")
        return self._histories[sequence]

    def _live(self, sequence: int) -> History:
        history = self._of(sequence)
        if history.state != "live":
            raise ValueError(f"sequence {sequence} is {history.state}, only a live one can change")
        return history


def _resumable_cut(sequence: int, n: int, inputs: Inputs, resumable: Resumable | None) -> int:
    """The greatest length up to `n` that ends no group halfway and that the cache can go on from."""
    n = floor_cut(n, inputs.groups)
    while resumable is not None and n > 0:
        possible = floor_cut(min(n, max(0, resumable(sequence, n))), inputs.groups)
        if possible == n:
            break
        n = possible
    return n
