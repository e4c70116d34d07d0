"""Histories: which inputs' keys and values each cache sequence holds, and who may reuse them. Bookkeeping only.

A sequence is free, live (a request writes it) or finished (kept for whoever begins alike, until evicted). A history
lists the inputs at positions 0, 1, 2, ... A new request takes the longest beginning of any history, live ones
included: the caller lets it share those cells, no data moves.

The caller moves the cells. It extends a history when the batch that computes the inputs is submitted, as whatever
reads their cells is computed after it, and truncates it when that batch fails.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from ollama_engine.input import Int32Array
from ollama_engine.runner.inputs import Inputs, floor_cut

__all__ = ["Histories", "Prefix", "Resumable", "Start", "Taken"]

State = Literal["free", "live", "finished"]

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


@dataclass(slots=True)
class _History:
    tokens: array[int] = field(default_factory=lambda: array("i"))
    """32 bits each; appends in place, and numpy reads it without a copy."""
    media: list[tuple[int, int]] = field(default_factory=list)
    """(index, media hash), ascending."""
    exact: int | None = None
    """A shift discarded inputs after this many: later keys and values have seen what is gone. None: all are exact."""
    state: State = "free"
    pins: int = 0
    used_at: float = 0.0

    @property
    def reusable(self) -> int:
        """How many inputs a new request may take over."""
        return len(self.tokens) if self.exact is None else min(self.exact, len(self.tokens))

    @property
    def evictable(self) -> bool:
        return self.state == "finished" and not self.pins


class Histories:
    """Histories of `n_sequences` cache sequences, all free at first. Times are the caller's, in any unit.

    Methods raise ValueError for a sequence that does not exist or is not in the state they need; nothing changes then.
    """

    def __init__(self, n_sequences: int) -> None:
        if n_sequences < 1:
            raise ValueError(f"there is at least one sequence, got {n_sequences}")
        self._histories = [_History() for _ in range(n_sequences)]

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
            n = _common(history, inputs, n)
            n = _resumable_cut(sequence, n, inputs, resumable)
            if n > length:
                best, length = sequence, n
        return Prefix(best, length)

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
        history.used_at = max(history.used_at, now)
        taken = self._take(now, spare=source)
        if taken is None:
            if not history.evictable:
                return None
            # Its end is all there is to give up.
            self.truncate(source, length)
            history.state = "live"
            return Start(source, length, None, length)
        self.share(source, taken.sequence, length)
        return Start(taken.sequence, 0 if taken.evicted else None, source, length)

    def begin_empty(self, now: float) -> Start | None:
        """A live sequence that reuses nothing; None when all are in use."""
        taken = self._take(now)
        return None if taken is None else Start(taken.sequence, 0 if taken.evicted else None, None, 0)

    def take(self, now: float) -> Taken | None:
        """A live, empty sequence: a free one, else the least recently used finished one; None when all are in use."""
        return self._take(now)

    def share(self, source: int, target: int, length: int) -> None:
        """Give an empty live sequence the first `length` inputs of another: a fork. The caller shares the cells."""
        giver, taker = self._of(source), self._live(target)
        if taker.tokens:
            raise ValueError(f"sequence {target} has a history of its own already")
        if not 0 <= length <= len(giver.tokens):
            raise ValueError(f"sequence {source} holds {len(giver.tokens)} inputs, {length} cannot be shared")
        taker.tokens = giver.tokens[:length]
        taker.media = [one for one in giver.media if one[0] < length]
        taker.exact = giver.exact if giver.exact is not None and giver.exact < length else None

    def finish(self, sequence: int, now: float) -> None:
        """The request ended: its history stays until evicted. An empty one is free at once, unless pinned."""
        history = self._live(sequence)
        if history.tokens or history.pins:
            history.state, history.used_at = "finished", now
        else:
            self._histories[sequence] = _History()

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
        self._histories[sequence] = _History()

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
        if not history.pins and history.state == "finished" and not history.tokens:
            self._histories[sequence] = _History()

    # -- changing a history --------------------------------------------------------------------------------------------

    def append(self, sequence: int, token: int) -> None:
        """One more token of a live sequence."""
        self._live(sequence).tokens.append(token)

    def extend(self, sequence: int, inputs: Inputs) -> None:
        """More inputs of a live sequence."""
        history = self._live(sequence)
        begin = len(history.tokens)
        history.tokens.frombytes(np.ascontiguousarray(inputs.tokens, dtype=np.int32).tobytes())
        history.media.extend((begin + i, media) for i, media in inputs.media)

    def truncate(self, sequence: int, length: int) -> None:
        """Forget the inputs from position `length` on, of a live or finished sequence."""
        history = self._of(sequence)
        if not 0 <= length <= len(history.tokens):
            raise ValueError(f"sequence {sequence} holds {len(history.tokens)} inputs, it cannot be cut to {length}")
        del history.tokens[length:]
        while history.media and history.media[-1][0] >= length:
            history.media.pop()
        if history.exact is not None and history.exact >= length:
            history.exact = None

    def shift(self, sequence: int, keep: int, discard: int) -> None:
        """Inputs [keep, keep + discard) leave, later ones move down. Only the first `keep` can be reused from now on.

        What stays has been computed in view of what left; another request would not get the tokens it gets alone.
        """
        history = self._live(sequence)
        end = keep + discard
        if not 0 <= keep <= end <= len(history.tokens):
            raise ValueError(f"sequence {sequence} holds {len(history.tokens)} inputs, {keep} to {end} cannot leave")
        del history.tokens[keep:end]
        history.media = [(i if i < keep else i - discard, media) for i, media in history.media if not keep <= i < end]
        if discard and keep < len(history.tokens):
            history.exact = keep if history.exact is None else min(history.exact, keep)

    def check(self) -> None:
        """Raise AssertionError unless all is consistent; for tests and debugging."""
        for sequence, history in enumerate(self._histories):
            who = f"sequence {sequence}"
            if history.state == "free":
                assert history == _History(), f"{who}: a free sequence holds nothing"
            assert history.state != "finished" or history.tokens or history.pins, f"{who}: finished and empty"
            places = [i for i, _ in history.media]
            assert all(a < b for a, b in zip(places, places[1:], strict=False)), f"{who}: media ascend"
            assert not places or 0 <= places[0] <= places[-1] < len(history.tokens), f"{who}: media lie within"
            assert history.exact is None or 0 <= history.exact < len(history.tokens), f"{who}: exact lies within"
            assert history.pins >= 0, f"{who}: pins"

    # -- inside --------------------------------------------------------------------------------------------------------

    def _take(self, now: float, spare: int | None = None) -> Taken | None:
        sequence = next((i for i, history in enumerate(self._histories) if history.state == "free"), None)
        evicted = sequence is None
        if sequence is None:
            sequence = next((i for i in self.evict_candidates() if i != spare), None)
        if sequence is None:
            return None
        self._histories[sequence] = _History(state="live", used_at=now)
        return Taken(sequence, evicted)

    def _of(self, sequence: int) -> _History:
        if not 0 <= sequence < len(self._histories):
            raise ValueError(f"sequences are 0 to {len(self._histories) - 1}, got {sequence}")
        return self._histories[sequence]

    def _live(self, sequence: int) -> _History:
        history = self._of(sequence)
        if history.state != "live":
            raise ValueError(f"sequence {sequence} is {history.state}, only a live one can change")
        return history


def _common(history: _History, inputs: Inputs, n: int) -> int:
    """How many of the first `n` inputs are the same."""
    tokens = np.frombuffer(history.tokens, dtype=np.int32)
    begin, size = 0, 64
    while begin < n:
        end = min(begin + size, n)
        differs = tokens[begin:end] != inputs.tokens[begin:end]
        first = int(differs.argmax())
        if differs[first]:
            n = begin + first
            break
        # Most differ early, and the few that do not are long.
        begin, size = end, min(size * 8, 1 << 15)
    for mine, theirs in _pairs(history.media, inputs.media, n):
        if mine != theirs:
            return min(mine[0], theirs[0])
    return n


def _pairs(
    mine: Sequence[tuple[int, int]], theirs: Sequence[tuple[int, int]], n: int
) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Media of two runs side by side, those below index n; where one has no more, (n, 0) stands for it."""
    end = (n, 0)
    for i in range(max(len(mine), len(theirs))):
        pair = mine[i] if i < len(mine) else end, theirs[i] if i < len(theirs) else end
        if pair[0][0] >= n and pair[1][0] >= n:
            return
        yield pair


def _resumable_cut(sequence: int, n: int, inputs: Inputs, resumable: Resumable | None) -> int:
    """The greatest length up to `n` that ends no group halfway and that the cache can go on from."""
    n = floor_cut(n, inputs.groups)
    while resumable is not None and n > 0:
        possible = floor_cut(min(n, max(0, resumable(sequence, n))), inputs.groups)
        if possible == n:
            break
        n = possible
    return n
