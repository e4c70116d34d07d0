"""PinnedSequences: the cache sequences of sessions, and how finished sequences are evicted.

A session pins a finished sequence, so that it is not evicted. Between its requests it may be cut, forked, saved and
restored. All of that happens while nothing computes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ollama_engine.errors import ContextOverflowError
from ollama_engine.kvcache import Cache, Saveable, SavedRows
from ollama_engine.runner.prefix.prefix_cache import PrefixCache
from ollama_engine.runner.request.inputs import Inputs
from ollama_engine.runner.schedule.overflow import plan_eviction
from ollama_engine.runner.schedule.pinned_prefix import PinnedPrefix, Saved

__all__ = ["PinnedSequences"]

NO_SEQUENCE = "sessions and requests hold all sequences of the cache; close some sessions"


class PinnedSequences:
    """The sequences of `cache` that sessions hold; `prefix_cache` says what they contain. True while there are any."""

    def __init__(self, cache: Cache, prefix_cache: PrefixCache) -> None:
        self._cache = cache
        self._prefix_cache = prefix_cache
        self._saveable = cache.saveable
        self._pins: dict[int, PinnedPrefix] = {}

    def __bool__(self) -> bool:
        return bool(self._pins)

    def check(self) -> None:
        """Raise AssertionError unless a sequence is pinned while a session holds it, and only then."""
        for slot in range(len(self._prefix_cache)):
            pinned = self._pins.get(slot)
            assert self._prefix_cache.pinned(slot) == (pinned is not None), "who pins"
            assert pinned is None or (pinned.slot == slot and not pinned.closed), "what is held"

    def pin(self, slot: int, pinned: PinnedPrefix) -> None:
        """Pin a sequence for a session."""
        self._prefix_cache.pin(slot)
        pinned.slot, self._pins[slot] = slot, pinned

    def release(self, pinned: PinnedPrefix) -> None:
        """Unpin a session's sequence. It stays in the prefix cache like those of requests, until it is evicted."""
        slot, pinned.slot, pinned.closed, pinned.release = pinned.slot, None, True, None
        if slot is not None:
            del self._pins[slot]
            self._prefix_cache.unpin(slot)
            for sequence in self._prefix_cache.surplus():
                self.give_up(sequence)

    def trim(self, pinned: PinnedPrefix, tokens: Inputs) -> None:
        """Keep only the prefix of a session's sequence that equals `tokens`."""
        if pinned.slot is not None:
            self.cut(pinned.slot, self._prefix_cache.common(pinned.slot, tokens, len(tokens)))

    def cut(self, slot: int, length: int) -> None:
        """Forget what a sequence holds behind its first `length` inputs."""
        self._cache.remove(slot, length)
        if self._prefix_cache.length(slot) > length:
            self._prefix_cache.truncate(slot, length)

    def fork(self, pinned: PinnedPrefix, other: PinnedPrefix, now: float) -> None:
        """Share a session's cells with another session. Raises ContextOverflowError when all sequences are in use."""
        if pinned.slot is None:
            return
        slot, length = self._take(now), self._prefix_cache.length(pinned.slot)
        self._prefix_cache.share(pinned.slot, slot, length)
        self._cache.share(pinned.slot, slot, length)
        self.pin(slot, other)
        self._prefix_cache.finish(slot, now)

    # -- saving and restoring ------------------------------------------------------------------------------------------

    def save(self, pinned: PinnedPrefix) -> Saved:
        """A copy of a session's keys and values."""
        if pinned.slot is None or self._saveable is None:
            return Saved()
        parts = tuple(self._saveable.save(pinned.slot))
        return Saved(self._prefix_cache.length(pinned.slot), self._prefix_cache.exact(pinned.slot), parts)

    def restore(self, pinned: PinnedPrefix, inputs: Inputs, saved: Saved, now: float) -> None:
        """Put the keys and values of these inputs, from `save`, behind what the session holds. No step may be prepared.

        Raises ContextOverflowError when there is no room; requests and sessions then keep all they have.
        """
        assert self._saveable is not None, "nothing was saved of such a cache"
        kept = inputs.part(0, saved.length)
        self._make_room(self._saveable, saved.parts, needs_sequence=pinned.slot is None)
        slot = self._take(now) if pinned.slot is None else pinned.slot
        try:
            self._saveable.restore(slot, saved.parts)
        except BaseException:
            if pinned.slot is None:
                self._prefix_cache.release(slot)
            raise
        if pinned.slot is None:
            self._prefix_cache.restore(slot, kept, saved.exact)
            self.pin(slot, pinned)
        else:
            self._prefix_cache.resume(slot, now)
            self._prefix_cache.extend(slot, kept)
        self._prefix_cache.finish(slot, now)

    def _make_room(self, saveable: Saveable, parts: Sequence[SavedRows], *, needs_sequence: bool) -> None:
        """Evict cached sequences until there are a sequence and cells for `parts`; none where that does not help."""

        def fits(without: Collection[int]) -> bool:
            try:
                saveable.require_restore(parts, without)
            except ContextOverflowError:
                return False
            return not needs_sequence or bool(without) or self._prefix_cache.has_free

        candidates = self._prefix_cache.evict_candidates()
        given_up = plan_eviction(candidates, fits)
        if given_up is None:
            try:
                saveable.require_restore(parts, candidates)
            except ContextOverflowError as error:
                held = f"{error}; sessions and requests hold the others, close some sessions"
                raise ContextOverflowError(held) from None
            raise ContextOverflowError(NO_SEQUENCE)
        for sequence in given_up:
            self.give_up(sequence)

    def _take(self, now: float) -> int:
        taken = self._prefix_cache.take(now)
        if taken is None:
            raise ContextOverflowError(NO_SEQUENCE)
        if taken.evicted:
            self._cache.remove(taken.sequence)
        return taken.sequence

    def give_up(self, sequence: int) -> None:
        """Evict a finished sequence that no session pins: free it, and its cells."""
        self._cache.remove(sequence)
        self._prefix_cache.release(sequence)
