"""PrefixCache: which inputs' keys and values each cache sequence holds, and who may reuse them. Bookkeeping only.

A sequence is free, live (a request writes it) or finished (kept for requests with the same prefix, until evicted). Its
history is the list of inputs at positions 0, 1, 2, ... A new request reuses the longest prefix of any history, also of
live sequences: it shares those cells, and no data moves.

The caller changes the cells. It may extend a history as soon as the batch that computes the inputs is launched, because
every reader of their cells is computed later. When that batch fails, the caller truncates the history, and those that
reused the inputs meanwhile.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from heapq import heappop, heappush

import numpy as np

from ollama_engine.input import Int32Array
from ollama_engine.runner.prefix.cached_sequence import CachedSequence, State
from ollama_engine.runner.prefix.start import Prefix, Resumable, Start, Taken
from ollama_engine.runner.request.inputs import Inputs, floor_cut

__all__ = ["PrefixCache"]

HISTORIES = 64
"""Finished sequences to keep: enough for prompts that recur, few enough to compare a new prompt with each."""


class PrefixCache:
    """Allocates cache sequences on demand: the lowest free number, or a new one.

    There are at most `limit` sequences; None: any number. About `kept` finished sequences without a pin stay; beyond
    that, a new request takes the least recently used one. Times are the caller's, in any unit.

    Methods raise ValueError, and change nothing, for a sequence that does not exist or is in the wrong state.
    """

    def __init__(self, limit: int | None = None, *, kept: int = HISTORIES) -> None:
        if limit is not None and limit < 1:
            raise ValueError(f"there is at least one sequence, got {limit}")
        if kept < 1:
            raise ValueError(f"at least one sequence is kept, got {kept}")
        self._limit = limit
        self._kept = kept
        self._sequences: list[CachedSequence] = []
        self._free: list[int] = []
        """Free numbers, as a heap."""
        self._held: list[int] = []
        """Sequences that are not free, ascending."""
        self._evictable: set[int] = set()

    # -- queries -------------------------------------------------------------------------------------------------------

    def __len__(self) -> int:
        """Number of sequences allocated so far, numbered from 0."""
        return len(self._sequences)

    def length(self, sequence: int) -> int:
        """Number of inputs that the sequence holds."""
        return len(self._of(sequence).tokens)

    def state(self, sequence: int) -> State:
        """Whether it is free, live or finished."""
        return self._of(sequence).state

    def pinned(self, sequence: int) -> bool:
        """Whether the sequence is pinned, and so never evicted."""
        return self._of(sequence).pins > 0

    def tokens(self, sequence: int) -> Int32Array:
        """A copy of its tokens, int32 [length]."""
        return np.array(self._of(sequence).tokens, dtype=np.int32)

    def longest_prefix(self, inputs: Inputs, resumable: Resumable | None = None, limit: int | None = None) -> Prefix:
        """The longest prefix of `inputs` that some sequence holds. Changes nothing.

        Up to `limit`; never all inputs, because the logits of the last one are wanted, and never a part of a group.
        Among equally long ones, the lowest sequence.
        """
        limit = inputs.most_reusable(limit)
        best, length = None, 0
        for sequence in self._held if limit else ():
            cached = self._sequences[sequence]
            n = min(cached.reusable, limit)
            if cached.namespace != inputs.namespace:
                continue
            # To be longer than the best so far, it must have the prompt's next input at that place. Cheap to check.
            if n <= length or cached.tokens[length] != inputs.tokens[length]:
                continue
            n = cached.common(inputs, n)
            n = _resumable_cut(sequence, n, inputs, resumable)
            if n > length:
                best, length = sequence, n
            if length == limit:
                break
        return Prefix(best, length)

    def common(self, sequence: int, inputs: Inputs, limit: int, resumable: Resumable | None = None) -> int:
        """Length of the prefix of `inputs`, up to `limit`, that the sequence holds and can resume at. Changes nothing.

        Only for the owner of the sequence: unlike `longest_prefix`, this also counts inputs behind a context shift.
        """
        cached = self._of(sequence)
        n = cached.common(inputs, min(len(cached), limit))
        return _resumable_cut(sequence, n, inputs, resumable)

    def exact(self, sequence: int) -> int | None:
        """Number of inputs before the first shifted-out one, whose keys and values are exact; None: all."""
        return self._of(sequence).exact

    def snapshot(self, sequence: int) -> CachedSequence:
        """A copy of what a new request may reuse of a sequence."""
        copy, cached = CachedSequence(), self._of(sequence)
        copy.copy_from(cached, cached.reusable)
        return copy

    def begins_with(self, sequence: int, history: CachedSequence, length: int) -> bool:
        """Whether the first `length` inputs of a sequence are those of `history`, and no shift lies before them."""
        cached = self._of(sequence) if sequence < len(self) else CachedSequence()
        if cached.reusable < length or cached.namespace != history.namespace:
            return False
        same_media = cached.media_below(length) == history.media_below(length)
        return same_media and cached.tokens[:length] == history.tokens[:length]

    @property
    def has_free(self) -> bool:
        """Whether there is a sequence that holds nothing, or can be a new one."""
        return bool(self._free) or self._limit is None or len(self._sequences) < self._limit

    def evict_candidates(self) -> list[int]:
        """Finished histories that nothing pins, the least recently used first. Changes nothing."""
        return sorted(self._evictable, key=lambda sequence: (self._sequences[sequence].used_at, sequence))

    def surplus(self) -> list[int]:
        """The evictable sequences beyond those to keep, for the caller to evict. Changes nothing."""
        n = len(self._evictable) - self._kept
        return self.evict_candidates()[:n] if n > 0 else []

    # -- taking and giving back ----------------------------------------------------------------------------------------

    def begin(
        self, inputs: Inputs, now: float, resumable: Resumable | None = None, limit: int | None = None
    ) -> Start | None:
        """A live sequence for a request that holds the longest prefix of `inputs` there is; None when all are in use.

        A finished history that is a prefix as a whole goes on as it is; of any other the beginning is shared. `limit`:
        inputs to reuse at most.
        """
        source, length = self.longest_prefix(inputs, resumable, limit)
        if source is None:
            return self.begin_empty(now, inputs.namespace)
        cached = self._sequences[source]
        if cached.evictable and length == len(cached.tokens):
            self.resume(source, now)
            return Start(source, None, None, length)
        taken = self.take(now, spare=source)
        if taken is None and not cached.evictable:
            return None
        cached.used_at = now
        if taken is None:
            # Its end is all there is to give up.
            self.resume(source, now)
            cached.truncate(length)
            return Start(source, length, None, length)
        self.share(source, taken.sequence, length)
        return Start(taken.sequence, 0 if taken.evicted else None, source, length)

    def begin_empty(self, now: float, namespace: str = "") -> Start | None:
        """A live sequence that reuses nothing; None when all are in use."""
        taken = self.take(now)
        if taken is not None:
            self._sequences[taken.sequence].namespace = namespace
        return None if taken is None else Start(taken.sequence, 0 if taken.evicted else None, None, 0)

    def take(self, now: float, spare: int | None = None) -> Taken | None:
        """A live, empty sequence: a free one, or the least recently used finished one where enough are kept.

        None when all are in use. `spare` is not evicted.
        """
        evict = len(self._evictable) >= self._kept or not self.has_free
        victim = next((i for i in self.evict_candidates() if i != spare), None) if evict else None
        if victim is None and not self.has_free:
            return None
        sequence = self._next_free() if victim is None else victim
        self._evictable.discard(sequence)
        self._sequences[sequence] = CachedSequence(state="live", used_at=now)
        return Taken(sequence, victim is not None)

    def _next_free(self) -> int:
        if self._free:
            sequence = heappop(self._free)
        else:
            sequence = len(self._sequences)
            self._sequences.append(CachedSequence())
        insort(self._held, sequence)
        return sequence

    def share(self, source: int, target: int, length: int) -> None:
        """Give an empty live sequence the first `length` inputs of another: a fork. The caller shares the cells."""
        self._live(target).copy_from(self._of(source), length)

    def restore(self, sequence: int, inputs: Inputs, exact: int | None) -> None:
        """Give an empty live sequence a history that was saved, `exact` of it. The caller restores the cells."""
        cached = self._live(sequence)
        if cached.tokens:
            raise ValueError(f"sequence {sequence} holds {len(cached)} inputs already")
        cached.namespace = inputs.namespace
        cached.extend(inputs)
        cached.exact = exact

    def finish(self, sequence: int, now: float) -> None:
        """The request ended: its history stays until evicted. An empty one is free at once, unless pinned."""
        cached = self._live(sequence)
        cached.state, cached.used_at = "finished", now
        self._settle(sequence)

    def resume(self, sequence: int, now: float, namespace: str | None = None) -> None:
        """A finished history goes on as a live one, as it is. An empty one may change its namespace."""
        cached = self._of(sequence)
        if cached.state != "finished":
            raise ValueError(f"sequence {sequence} is {cached.state}, only a finished one can be resumed")
        if namespace is not None and namespace != cached.namespace:
            if cached.tokens:
                raise ValueError(f"sequence {sequence} holds inputs of namespace {cached.namespace!r}")
            cached.namespace = namespace
        cached.state, cached.used_at = "live", now
        self._settle(sequence)

    def release(self, sequence: int) -> None:
        """Free the sequence. The caller removes its cells."""
        cached = self._of(sequence)
        if cached.state == "free" or cached.pins:
            raise ValueError(f"sequence {sequence} is {'pinned' if cached.pins else 'free'} and cannot be released")
        self._set_free(sequence)

    def pin(self, sequence: int) -> None:
        """Keep the sequence from being evicted until `unpin` is called as often. Sessions pin theirs."""
        cached = self._of(sequence)
        if cached.state == "free":
            raise ValueError(f"sequence {sequence} is free, there is nothing to pin")
        cached.pins += 1
        self._settle(sequence)

    def unpin(self, sequence: int) -> None:
        """Undo one `pin`. Raises ValueError where the sequence is not pinned."""
        cached = self._of(sequence)
        if not cached.pins:
            raise ValueError(f"sequence {sequence} is not pinned")
        cached.pins -= 1
        self._settle(sequence)

    # -- changing a history -------------------------------------------------------------------------------------------

    def append(self, sequence: int, token: int) -> None:
        """Append a token to a live sequence."""
        self._live(sequence).tokens.append(token)

    def extend(self, sequence: int, inputs: Inputs) -> None:
        """Append inputs to a live sequence."""
        self._live(sequence).extend(inputs)

    def truncate(self, sequence: int, length: int) -> None:
        """Remove the inputs from position `length` on from a live or finished sequence."""
        self._of(sequence).truncate(length)
        self._settle(sequence)

    def shift(self, sequence: int, keep: int, discard: int) -> None:
        """Remove the inputs [keep, keep + discard); later ones move down. Only the first `keep` can be reused then.

        The remaining keys and values depend on the discarded inputs, so with them another request would get other
        tokens than it gets alone.
        """
        self._live(sequence).shift(keep, discard)

    def check(self) -> None:
        """Raise AssertionError unless all sequences are consistent; for tests and debugging."""
        for cached in self._sequences:
            cached.check()
        states = list(enumerate(self._sequences))
        assert sorted(self._free) == [i for i, cached in states if cached.state == "free"], "free ones"
        assert self._held == [i for i, cached in states if cached.state != "free"], "held ones"
        assert self._evictable == {i for i, cached in states if cached.evictable}, "evictable ones"

    # -- internals -----------------------------------------------------------------------------------------------------

    def _settle(self, sequence: int) -> None:
        """Update the indexes after a change of a sequence, and free it if it is finished, empty and not pinned."""
        cached = self._sequences[sequence]
        if not cached.evictable:
            self._evictable.discard(sequence)
        elif cached.tokens:
            self._evictable.add(sequence)
        else:
            self._set_free(sequence)

    def _set_free(self, sequence: int) -> None:
        self._sequences[sequence] = CachedSequence()
        self._evictable.discard(sequence)
        del self._held[bisect_left(self._held, sequence)]
        heappush(self._free, sequence)

    def _of(self, sequence: int) -> CachedSequence:
        if not 0 <= sequence < len(self._sequences):
            raise ValueError(f"sequences are 0 to {len(self._sequences) - 1}, got {sequence}")
        return self._sequences[sequence]

    def _live(self, sequence: int) -> CachedSequence:
        cached = self._of(sequence)
        if cached.state != "live":
            raise ValueError(f"sequence {sequence} is {cached.state}, only a live one can change")
        return cached


def _resumable_cut(sequence: int, n: int, inputs: Inputs, resumable: Resumable | None) -> int:
    """The greatest length <= `n` at which no group is split and the cache can resume."""
    n = floor_cut(n, inputs.groups)
    while resumable is not None and n > 0:
        possible = floor_cut(min(n, max(0, resumable(sequence, n))), inputs.groups)
        if possible == n:
            break
        n = possible
    return n
