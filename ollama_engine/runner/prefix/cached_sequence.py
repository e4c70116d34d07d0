"""CachedSequence: the inputs whose keys and values one cache sequence holds, at positions 0, 1, 2, ..., and who uses
it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest
from typing import Literal

import numpy as np

from ollama_engine.runner.schedule.inputs import Inputs

__all__ = ["CachedSequence", "State"]

State = Literal["free", "live", "finished"]


@dataclass(slots=True)
class CachedSequence:
    """One history. Methods raise ValueError, changing nothing, for a range that it does not pinned."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    """32 bits each; appends in place, and numpy reads it without a copy."""
    media: list[tuple[int, int]] = field(default_factory=list)
    """(index, media hash), ascending."""
    exact: int | None = None
    """A shift discarded inputs after this many: later keys and values have seen what is gone. None: all are exact."""
    state: State = "free"
    pins: int = 0
    used_at: float = 0.0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def reusable(self) -> int:
        """How many inputs a new request may take over."""
        return len(self.tokens) if self.exact is None else self.exact

    @property
    def evictable(self) -> bool:
        """Whether nobody would miss it."""
        return self.state == "finished" and not self.pins

    def common(self, inputs: Inputs, n: int) -> int:
        """How many of the first `n` inputs are the same, token and media; neither has fewer than `n`."""
        tokens = np.frombuffer(self.tokens, dtype=np.int32)
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
        for mine, theirs in zip_longest(self.media, inputs.media, fillvalue=(n, None)):
            if mine != theirs or mine[0] >= n:
                return min(n, mine[0], theirs[0])
        return n

    def extend(self, inputs: Inputs) -> None:
        """More inputs."""
        begin = len(self.tokens)
        self.tokens.frombytes(np.ascontiguousarray(inputs.tokens, dtype=np.int32).tobytes())
        self.media.extend((begin + i, media) for i, media in inputs.media)

    def copy_from(self, other: CachedSequence, length: int) -> None:
        """PinnedPrefix the first `length` inputs of another; this one is empty."""
        if self.tokens:
            raise ValueError(f"a history of {len(self)} inputs cannot take over another's")
        other.check_range(length, len(other))
        self.tokens = other.tokens[:length]
        self.media = [one for one in other.media if one[0] < length]
        self.exact = other.exact if other.exact is not None and other.exact < length else None

    def truncate(self, length: int) -> None:
        """Forget the inputs from `length` on."""
        self.check_range(length, len(self))
        del self.tokens[length:]
        while self.media and self.media[-1][0] >= length:
            self.media.pop()
        if self.exact is not None and self.exact >= length:
            self.exact = None

    def shift(self, keep: int, discard: int) -> None:
        """Inputs [keep, keep + discard) leave, later ones move down."""
        end = keep + discard
        self.check_range(keep, end)
        del self.tokens[keep:end]
        self.media = [(i if i < keep else i - discard, media) for i, media in self.media if not keep <= i < end]
        exact = keep if self.exact is None else min(self.exact, keep)
        self.exact = exact if discard and exact < len(self.tokens) else self.exact
        if self.exact is not None and self.exact >= len(self.tokens):
            self.exact = None

    def check_range(self, begin: int, end: int) -> None:
        """Raise ValueError unless inputs [begin, end) are held."""
        if not 0 <= begin <= end <= len(self.tokens):
            raise ValueError(f"a history of {len(self.tokens)} inputs has no range from {begin} to {end}")

    def check(self) -> None:
        """Raise AssertionError unless it is consistent; for tests and debugging."""
        places = [i for i, _ in self.media]
        assert self.state != "free" or self == CachedSequence(), "a free sequence holds nothing"
        assert self.state != "finished" or self.tokens or self.pins, "nobody needs an empty finished one"
        assert all(a < b for a, b in pairwise(places)), "media ascend"
        assert not places or 0 <= places[0] <= places[-1] < len(self.tokens), "media lie within"
        assert self.exact is None or 0 <= self.exact < len(self.tokens), "exact lies within"
        assert self.pins >= 0, "pins"
