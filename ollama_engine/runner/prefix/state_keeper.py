"""StateKeeper: where recurrent models go on, and which of their states are kept. It does nothing for other models."""

from __future__ import annotations

from ollama_engine.kvcache import Cache
from ollama_engine.runner.prefix.prefix_cache import PrefixCache
from ollama_engine.runner.schedule.checkpoints import plan_checkpoints
from ollama_engine.runner.schedule.sequence import Generation, ScheduledRequest

__all__ = ["StateKeeper"]


class StateKeeper:
    """The states of a cache, if it has any."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache
        self._states = cache.recurrent

    def resumable(self, slot: int, length: int) -> int:
        """The next length up to `length` at which the cache may resume a sequence: `length` itself where it can."""
        if self._cache.can_resume(slot, length):
            return length
        # No shorter length without states: a window that lacks tokens for this one lacks them for earlier ones, too.
        return 0 if self._states is None else self._states.latest(slot, length - 1)

    def hold(self, sequence: ScheduledRequest, prefix_cache: PrefixCache) -> None:
        """Keep the state that a request goes on from, and plan the checkpoints of its prompt."""
        if self._states is None:
            return
        assert sequence.slot is not None
        self._states.hold(sequence.slot)
        # What is computed now though some sequence has it will be asked for once more.
        parted = prefix_cache.longest_prefix(sequence.inputs).length
        ends = sequence.eog_ids if isinstance(sequence, Generation) else ()
        sequence.checkpoints = plan_checkpoints(sequence.inputs, ends, (parted,))

    def release(self, slot: int, length: int) -> None:
        """A request with so many inputs has left this sequence. More are computed where a text stops within a step."""
        if self._states is not None:
            self._states.release(slot, length)

    def go_back(self, slot: int, length: int) -> int:
        """The greatest length up to `length` at which the cache can resume a sequence."""
        while length != (possible := self.resumable(slot, length)):
            length = possible
        return length
