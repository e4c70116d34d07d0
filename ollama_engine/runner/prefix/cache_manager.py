"""CacheManager: gives requests their cache sequences and cells.

A slot is the number of a cache sequence. It indexes two things, which change only here, and always together:

    slot                    0          1        2
    PrefixCache: history    a b c d    a b x    free     inputs at positions 0, 1, 2, ...: who may reuse which prefix
    Cache: cells            0 1 2 3    0 1 4             rows of their keys and values; 0 and 1 are shared, not copied

A request without `cache` has cells, and no history that others could reuse.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from ollama_engine.errors import ContextOverflowError
from ollama_engine.input import Int32Array
from ollama_engine.kvcache import MAX_SEQUENCES, Cache
from ollama_engine.runner.prefix.pinned_sequences import PinnedSequences
from ollama_engine.runner.prefix.prefix_cache import PrefixCache
from ollama_engine.runner.prefix.state_keeper import StateKeeper
from ollama_engine.runner.request.inputs import Inputs, spans_between
from ollama_engine.runner.schedule.batching import Step
from ollama_engine.runner.schedule.overflow import plan_eviction, plan_shift
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest

__all__ = ["CacheManager"]

log = logging.getLogger(__name__)


class CacheManager:
    """A cache of up to `sequences` sequences, and the prefix cache that says what they hold."""

    def __init__(self, cache: Cache, *, sequences: int = MAX_SEQUENCES) -> None:
        self.cache = cache
        self.prefix_cache = PrefixCache(sequences)
        self.pinned = PinnedSequences(cache, self.prefix_cache)
        self._shiftable = cache.shiftable
        self._states = StateKeeper(cache)

    @property
    def room(self) -> int:
        """Tokens that fit without evicting anything."""
        return self.cache.room

    @property
    def holds_sessions(self) -> bool:
        """Whether any session has tokens in the cache."""
        return bool(self.pinned)

    def check(self) -> None:
        """Raise AssertionError unless the bookkeeping is consistent, and a sequence pinned while a session holds it."""
        self.prefix_cache.check()
        self.pinned.check()

    # -- coming and going ----------------------------------------------------------------------------------------------

    def begin(self, sequence: ScheduledRequest, now: float) -> bool:
        """Give a request a cache sequence that shares its longest cached prefix; False when all are in use."""
        pinned = sequence.pinned
        if pinned is not None and pinned.slot is not None and self.prefix_cache.state(pinned.slot) == "finished":
            self._resume(sequence, pinned.slot, now)
            self._states.hold(sequence, self.prefix_cache)
            return True
        if sequence.options.cache:
            start = self.prefix_cache.begin(sequence.inputs, now, self._states.resumable, sequence.rows_from)
        else:
            start = self.prefix_cache.begin_empty(now, sequence.inputs.namespace)
        if start is None:
            return False
        if start.remove_from is not None:
            self.cache.remove(start.sequence, start.remove_from)
        if start.source is not None:
            self.cache.share(start.source, start.sequence, start.length)
        sequence.slot, sequence.submitted = start.sequence, start.length
        if pinned is not None and pinned.slot is None and not pinned.closed:
            self.pinned.pin(start.sequence, pinned)
        self._states.hold(sequence, self.prefix_cache)
        return True

    def cached(self, sequence: ScheduledRequest) -> int:
        """Number of inputs that a waiting request would not compute, if it started now."""
        return self.prefix_cache.longest_prefix(sequence.inputs, self._states.resumable, sequence.rows_from).length

    def _resume(self, sequence: ScheduledRequest, slot: int, now: float) -> None:
        """Continue a session with its own sequence, unless another one holds a longer prefix of its inputs."""
        limit = sequence.inputs.most_reusable(sequence.rows_from)
        length = self.prefix_cache.common(slot, sequence.inputs, limit, self._states.resumable)
        other = self.prefix_cache.longest_prefix(sequence.inputs, self._states.resumable, limit)
        source = other.sequence if other.length > length else None
        self.pinned.cut(slot, 0 if source is not None else length)
        self.prefix_cache.resume(slot, now, sequence.inputs.namespace)
        if source is not None:
            length = other.length
            self.prefix_cache.share(source, slot, length)
            self.cache.share(source, slot, length)
        sequence.slot, sequence.submitted = slot, length

    def leave(self, sequence: ScheduledRequest, now: float, *, keep: bool) -> None:
        """Take a request's sequence back. `keep` leaves it in the prefix cache for later requests."""
        slot, sequence.slot = sequence.slot, None
        if slot is None:
            return
        self._states.release(slot, sequence.known)
        if not (keep and sequence.leaves_history):
            self.cache.remove(slot)
            if not self.prefix_cache.pinned(slot):
                self.prefix_cache.release(slot)
                return
            self.prefix_cache.truncate(slot, 0)
        self.prefix_cache.finish(slot, now)

    # -- steps ---------------------------------------------------------------------------------------------------------

    def leave_out(self, step: Step) -> None:
        """Before a launch: a row of a request that has ended changes no state in place, but is computed for nothing."""
        if step.batch.in_place:
            for entry, position in zip(step.entries, step.batch.positions.tolist(), strict=True):
                if not entry.alive and entry.sequence.slot == entry.slot:
                    self._states.release(entry.slot, position)

    def note(self, step: Step, tokens: Int32Array) -> None:
        """After a launch: append the step's tokens to their sequences; remove those of requests that have left."""
        values, row = tokens.tolist(), 0
        for entry in step.entries:
            if entry.alive:
                if not entry.sequence.options.cache:
                    pass
                elif entry.n == 1:
                    self.prefix_cache.append(entry.slot, values[row])
                else:
                    at = int(step.batch.positions[row])
                    media = spans_between(entry.sequence.inputs.media, at, at + entry.n)
                    run = Inputs(tokens[row : row + entry.n], tuple(span.moved(-at) for span in media))
                    self.prefix_cache.extend(entry.slot, run)
            elif entry.sequence.slot == entry.slot:
                self.cache.remove(entry.slot, int(step.batch.positions[row]))
            row += entry.n

    def take_back(self, sequence: ScheduledRequest) -> None:
        """Remove wrong draft tokens from the cache: everything behind the sequence's submitted inputs.

        A recurrent model goes back to the state before them, and computes the right ones among them again.
        """
        if sequence.slot is None:
            return
        begin = self._states.go_back(sequence.slot, sequence.submitted)
        if begin < sequence.n_inputs:
            self._compute_again(sequence, begin)
        else:
            self.pinned.cut(sequence.slot, begin)
            sequence.submitted = begin

    def clean(self, sequences: list[ScheduledRequest]) -> None:
        """Remove sequences with NaN from the cache, before another step reads those cells: a mask does not hide NaN."""
        for sequence in sequences:
            if sequence.slot is not None:
                self.cache.remove(sequence.slot)
        self.cache.scrub()

    def forget(self) -> None:
        """After a failed step, drop all sequences without a request: it is unknown which of them are complete."""
        for sequence in range(len(self.prefix_cache)):
            if self.prefix_cache.state(sequence) != "finished":
                continue
            self.cache.remove(sequence)
            if self.prefix_cache.pinned(sequence):
                self.prefix_cache.truncate(sequence, 0)
            else:
                self.prefix_cache.release(sequence)

    # -- making room ---------------------------------------------------------------------------------------------------

    def evict(self) -> bool:
        """Evict the least recently used sequence; False when there is none to evict."""
        sequence = next(iter(self.prefix_cache.evict_candidates()), None)
        if sequence is None:
            return False
        self.pinned.give_up(sequence)
        return True

    def shift(self, generation: Generation) -> None:
        """Context shift: drop the oldest half of a full context, except the first `num_keep`. No step may be in flight.

        Raises ContextOverflowError where `num_keep` leaves no room.
        """
        assert generation.slot is not None
        planned = plan_shift(generation.submitted, generation.keep, generation.num_ctx, generation.inputs.groups)
        moved = not _moves_axes(generation, planned.keep) and self._move(generation.slot, planned.keep, planned.discard)
        generation.discard(planned.keep, planned.discard)
        generation.shifted += planned.discard
        if not moved or not self.cache.can_resume(generation.slot, generation.submitted):
            self._compute_again(generation, self._states.go_back(generation.slot, planned.keep))

    def _move(self, slot: int, keep: int, discard: int) -> bool:
        """Rotate the remaining keys to their new positions; False where the cache or model cannot."""
        shiftable = self._shiftable
        if shiftable is None:
            return False

        def fits(without: Collection[int]) -> bool:
            # Shared cells are copied first, which needs free cells.
            try:
                shiftable.require_shift(slot, keep, discard, without)
            except ContextOverflowError:
                return False
            return True

        given_up = plan_eviction(self.prefix_cache.evict_candidates(), fits)
        if given_up is None:
            return False
        for sequence in given_up:
            self.pinned.give_up(sequence)
        shiftable.shift(slot, keep, discard)
        if self.prefix_cache.length(slot):
            self.prefix_cache.shift(slot, keep, discard)
        return True

    def _compute_again(self, sequence: ScheduledRequest, begin: int) -> None:
        """Compute everything behind the first `begin` inputs again, as a prompt, at its new positions."""
        slot = sequence.slot
        assert slot is not None
        self.pinned.cut(slot, begin)
        sequence.withdraw()
        sequence.slot, sequence.submitted = slot, begin


def _moves_axes(generation: Generation, keep: int) -> bool:
    """Whether positions move by another number than that of the dropped inputs, as with images on several axes."""
    return any(span.extra_positions for span in generation.inputs.media if span.end > keep)
