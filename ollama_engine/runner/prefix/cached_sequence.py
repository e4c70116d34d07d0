"""CachedSequence: the inputs whose keys and values a cache sequence holds, at positions 0, 1, 2, ..., and its state."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

import numpy as np

from ollama_engine.runner.request.inputs import Inputs, MediaIdentity, common_media

__all__ = ["CachedSequence", "State"]

State = Literal["free", "live", "finished"]


@dataclass(slots=True)
class CachedSequence:
    """The inputs of one cache sequence. Methods raise ValueError, changing nothing, for a range that is not held."""

    tokens: array[int] = field(default_factory=lambda: array("i"))
    """Token ids, int32. An array.array: it appends in place, and numpy reads it without a copy."""
    media: list[MediaIdentity] = field(default_factory=list)
    """Media in ascending order. Without their embeddings, so they cannot be computed again from here."""
    namespace: str = ""
    """Namespace of the inputs; only requests of the same namespace may reuse them."""
    exact: int | None = None
    """Inputs before the first that a shift discarded; later keys and values still depend on those. None: no shift."""
    state: State = "free"
    pins: int = 0
    used_at: float = 0.0

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def reusable(self) -> int:
        """Number of inputs that a new request may reuse."""
        return len(self.tokens) if self.exact is None else self.exact

    @property
    def evictable(self) -> bool:
        """Whether the sequence may be evicted: finished and not pinned."""
        return self.state == "finished" and not self.pins

    def common(self, inputs: Inputs, n: int) -> int:
        """Length of the common prefix, at most `n`; inputs are equal if token and media are. Both have at least `n`."""
        if self.namespace != inputs.namespace:
            return 0
        tokens = np.frombuffer(self.tokens, dtype=np.int32)
        begin, size = 0, 64
        while begin < n:
            end = min(begin + size, n)
            differs = tokens[begin:end] != inputs.tokens[begin:end]
            first = int(differs.argmax())
            if differs[first]:
                n = begin + first
                break
            # Compare in growing steps: most sequences differ early, and the others share a long prefix.
            begin, size = end, min(size * 8, 1 << 15)
        return common_media(self.media, (span.identity for span in inputs.media), n)

    def media_below(self, end: int) -> list[MediaIdentity]:
        """The parts of media that lie before input `end`."""
        return _below(self.media, end)

    def extend(self, inputs: Inputs) -> None:
        """Append inputs that the cache now holds too."""
        begin = len(self.tokens)
        self.tokens.frombytes(np.ascontiguousarray(inputs.tokens, dtype=np.int32).tobytes())
        for span in inputs.media:
            self._add_media(span.moved(begin).identity)

    def _add_media(self, span: MediaIdentity) -> None:
        """Add a span, and join it with the last one where both belong to the same item, computed in several batches."""
        last = self.media[-1] if self.media else None
        goes_on = last is not None and (last.end, last.hash) == (span.begin, span.hash)
        if last is not None and goes_on and last.offset + last.end - last.begin == span.offset:
            self.media[-1] = last._replace(end=span.end)
        else:
            self.media.append(span)

    def copy_from(self, other: CachedSequence, length: int) -> None:
        """Copy the first `length` inputs of another sequence to this empty one."""
        if self.tokens:
            raise ValueError(f"a history of {len(self)} inputs cannot take over another's")
        other.check_range(length, len(other))
        self.tokens, self.namespace = other.tokens[:length], other.namespace
        self.media = _below(other.media, length)
        self.exact = other.exact if other.exact is not None and other.exact < length else None

    def truncate(self, length: int) -> None:
        """Forget the inputs from `length` on."""
        self.check_range(length, len(self))
        del self.tokens[length:]
        self.media = _below(self.media, length)
        if self.exact is not None and self.exact >= length:
            self.exact = None

    def shift(self, keep: int, discard: int) -> None:
        """Remove the inputs [keep, keep + discard); later ones move down."""
        end = keep + discard
        self.check_range(keep, end)
        del self.tokens[keep:end]
        self.media = _below(self.media, keep) + _from(self.media, end, discard)
        exact = keep if self.exact is None else min(self.exact, keep)
        self.exact = exact if discard and exact < len(self.tokens) else self.exact
        if self.exact is not None and self.exact >= len(self.tokens):
            self.exact = None

    def check_range(self, begin: int, end: int) -> None:
        """Raise ValueError unless inputs [begin, end) are held."""
        if not 0 <= begin <= end <= len(self.tokens):
            raise ValueError(f"a history of {len(self.tokens)} inputs has no range from {begin} to {end}")

    def check(self) -> None:
        """Raise AssertionError unless the sequence is consistent; for tests and debugging."""
        assert self.state != "free" or self == CachedSequence(), "a free sequence holds nothing"
        assert self.state != "finished" or self.tokens or self.pins, "an empty finished sequence is freed"
        assert all(a.end <= b.begin for a, b in pairwise(self.media)), "media ascend"
        assert all(0 <= span.begin < span.end <= len(self.tokens) for span in self.media), "media lie within"
        assert self.exact is None or 0 <= self.exact < len(self.tokens), "exact lies within"
        assert self.pins >= 0, "pins"


def _below(media: list[MediaIdentity], end: int) -> list[MediaIdentity]:
    """The parts of media spans that lie before input `end`."""
    return [span._replace(end=min(span.end, end)) for span in media if span.begin < end]


def _from(media: list[MediaIdentity], begin: int, back: int) -> list[MediaIdentity]:
    """The parts of media spans from input `begin` on, moved back by `back` inputs."""
    moved = []
    for span in media:
        if span.end > begin:
            first = max(span.begin, begin)
            moved.append(MediaIdentity(first - back, span.end - back, span.offset + first - span.begin, span.hash))
    return moved
