"""Inputs: the tokens and media of a sequence, as arrays, so that long ones are cheap to cut, compare and copy.

Groups. An input with `same_batch` = k must be computed in one batch with the k inputs that follow it. Inputs that are
linked in this way, directly or through others, form a group: a half-open range of indices. No batch edge, truncation,
shift or reused prefix may end inside a group. An image for cross-attention, with its one input, is a group even alone.

Media. A span of inputs may belong to a media item. Cutting an item that no group protects leaves two spans with their
offsets within the item.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice, zip_longest
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ollama_engine.input import Input, Int32Array, MediaItem

__all__ = [
    "Group",
    "Inputs",
    "Lookahead",
    "MediaIdentity",
    "MediaSpan",
    "ceil_cut",
    "common_media",
    "floor_cut",
    "groups_of",
    "spans_between",
]

SHORT_TEXT = 64
"""Fewer tokens before an image are computed together with it."""

Group = tuple[int, int]
"""Indices [begin, end) of inputs that are computed in one batch, dropped together, and kept together."""


class Lookahead(NamedTuple):
    """How much of a prompt waits for images to be encoded, so that one step computes them together: a batch."""

    inputs: int = SHORT_TEXT
    """Inputs that fill a batch."""
    images: int | None = None
    """Images that fill a batch; None: any number fits."""


class MediaSpan(NamedTuple):
    """Inputs [begin, end) belong to a media item, starting with the item's input `offset`."""

    begin: int
    end: int
    item: MediaItem
    offset: int = 0

    def moved(self, by: int) -> MediaSpan:
        """The same span, `by` inputs further on."""
        return self._replace(begin=self.begin + by, end=self.end + by)

    @property
    def whole(self) -> bool:
        """Whether the span is the complete item."""
        return self.offset == 0 and self.end - self.begin == self.item.n_inputs

    def positions(self, axes: int) -> Int32Array:
        """Positions of its inputs, int32 [axes, n], counted from where the span begins. Those of a cut item begin at
        0.
        """
        n = self.end - self.begin
        if self.item.positions is None:
            return np.tile(np.arange(n, dtype=np.int32), (axes, 1))
        mine = self.item.positions[:, self.offset : self.offset + n]
        return mine if self.whole else mine - mine.min()

    @property
    def extra_positions(self) -> int:
        """By how much the span advances positions beyond its number of inputs; may be negative."""
        if self.whole or self.item.positions is None:
            return self.item.extra_positions if self.whole else 0
        mine = self.item.positions[:, self.offset : self.offset + self.end - self.begin]
        return int(mine.max() - mine.min()) + 1 - (self.end - self.begin)

    @property
    def identity(self) -> MediaIdentity:
        """The fields that decide whether two spans are equal."""
        return MediaIdentity(self.begin, self.end, self.offset, self.item.hash)


class MediaIdentity(NamedTuple):
    """Place and content hash of a media item, without its embeddings."""

    begin: int
    end: int
    offset: int
    hash: int


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """A run of inputs. Two inputs are equal if token and media are; equal inputs have equal groups."""

    tokens: Int32Array
    """[n]"""
    media: tuple[MediaSpan, ...] = ()
    """Ascending and disjoint."""
    groups: tuple[Group, ...] = ()
    """Ascending and disjoint; inputs outside of groups may be computed one by one."""
    namespace: str = ""
    """Prefixes are shared only within a namespace: a salt, and everything else that changes keys and values."""

    @classmethod
    def of(cls, inputs: Sequence[Input]) -> Inputs:
        """The same inputs. Raises ValueError when a group or a media item reaches beyond the end, or into another."""
        spans = tuple(MediaSpan(i, i + x.media.n_inputs, x.media) for i, x in enumerate(inputs) if x.media is not None)
        ends = [*(span.begin for span in spans[1:]), len(inputs)]
        for span, end in zip(spans, ends, strict=False):
            if span.end > end:
                raise ValueError(f"the media item at input {span.begin} needs inputs up to {span.end}, has up to {end}")
        return cls(
            # A list: `fromiter` would leave a generator half used, and an interrupt as it is closed would be lost.
            tokens=np.array([x.token for x in inputs], np.int32),
            media=spans,
            groups=groups_of((x.same_batch for x in inputs), {s.begin for s in spans if s.item.cross_attention}),
        )

    @classmethod
    def text(cls, tokens: Sequence[int] | Int32Array) -> Inputs:
        """Inputs of token ids, without media."""
        return cls(np.asarray(tokens, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.tokens)

    def part(self, begin: int, end: int) -> Inputs:
        """Inputs [begin, end), counted from 0 again; shares the tokens' memory. Raises ValueError within a group."""
        if not 0 <= begin <= end <= len(self):
            raise ValueError(f"a part lies within 0 to {len(self)}, got {begin} to {end}")
        for edge in (begin, end):
            if floor_cut(edge, self.groups) != edge:
                raise ValueError(f"inputs {begin} to {end} cut a group of inputs that belong together at {edge}")
        return Inputs(
            self.tokens[begin:end],
            tuple(span.moved(-begin) for span in spans_between(self.media, begin, end)),
            tuple((first - begin, last - begin) for first, last in self.groups if begin <= first < end),
            self.namespace,
        )

    def join(self, other: Inputs) -> Inputs:
        """These inputs, then those of `other`."""
        n = len(self)
        return Inputs(
            np.concatenate((self.tokens, other.tokens)),
            self.media + tuple(span.moved(n) for span in other.media),
            self.groups + tuple((begin + n, end + n) for begin, end in other.groups),
            self.namespace,
        )

    def within(self, namespace: str) -> Inputs:
        """The same inputs in another namespace."""
        return self if namespace == self.namespace else replace(self, namespace=namespace)

    def with_tokens(self, tokens: Sequence[int]) -> Inputs:
        """A new Inputs: these, followed by token ids."""
        return self.join(Inputs.text(tokens)) if len(tokens) else self

    def without(self, begin: int, end: int) -> Inputs:
        """These inputs, [begin, end) left out. Raises ValueError within a group."""
        return self.part(0, begin).join(self.part(end, len(self)))

    def text_tokens(self) -> list[int]:
        """The tokens that are text, without those of media."""
        tokens: list[int] = self.tokens[self.is_text()].tolist()
        return tokens

    def is_text(self) -> npt.NDArray[np.bool_]:
        """Which inputs are tokens of text, bool [n]; the others are rows of media items."""
        is_text = np.ones(len(self), np.bool_)
        for span in self.media:
            is_text[span.begin : span.end] = False
        return is_text

    def most_reusable(self, limit: int | None = None) -> int:
        """How many of these a prefix may give, at most: up to `limit`, not the last one, no part of a group."""
        most = max(0, len(self) - 1)
        return floor_cut(most if limit is None else min(limit, most), self.groups)

    def media_from(self, begin: int) -> Iterator[MediaSpan]:
        """The media spans that end behind input `begin`: those of which something is still to be computed."""
        return islice(self.media, bisect_right(self.media, begin, key=lambda span: span.end), None)

    def ready_until(self, begin: int, lookahead: Lookahead) -> int:
        """Up to which input those from `begin` on should be computed: not into an image that is not encoded yet.

        `begin` where they should wait for that image: text before a first image where it is short, and images where
        they do not fill a batch.
        """
        unready = self._first_unready(begin)
        if unready is None:
            return len(self)
        n_ready, end = unready[0], max(begin, floor_cut(unready[1].begin, self.groups))
        wait = _share_batch(n_ready, end - begin, lookahead) if n_ready else end - begin < SHORT_TEXT
        return begin if wait else end

    def image_to_encode(self, begin: int, lookahead: Lookahead) -> MediaItem | None:
        """The image that should be encoded next for computing inputs from `begin` on, if any."""
        unready = self._first_unready(begin)
        if unready is None:
            return None
        n_ready, span = unready
        wanted = not n_ready or _share_batch(n_ready, floor_cut(span.begin, self.groups) - begin, lookahead)
        return span.item if wanted else None

    def _first_unready(self, begin: int) -> tuple[int, MediaSpan] | None:
        """The first image from `begin` on that is not encoded, behind the number of images before it."""
        spans = enumerate(self.media_from(begin))
        return next(((n_ready, span) for n_ready, span in spans if not span.item.ready()), None)

    @property
    def largest_group(self) -> int:
        """Inputs of the largest group; 0 without groups."""
        return max((end - begin for begin, end in self.groups), default=0)

    @property
    def longest_image_run(self) -> int:
        """Most images for cross-attention with no token between them: those are seen together."""
        longest = run = end = 0
        for span in self.media:
            if span.item.cross_attention:
                run = run + 1 if run and span.begin == end else 1
                longest, end = max(longest, run), span.end
        return longest

    def axis_positions(self, begin: int, n: int, axes: int) -> Int32Array:
        """Positions of `n` inputs from `begin` on, int32 [axes, n]; of what follows the last input, too.

        Text advances by 1 on each axis. A media item has its own positions, and the input behind it continues after its
        `n_positions` (Qwen2-VL, arXiv:2409.12191, section 2.1). The rest of a cut item counts as an item.
        """
        positions = np.tile(np.arange(begin, begin + n, dtype=np.int32), (axes, 1))
        extra = 0
        for span in self.media:
            first, last = (min(max(edge - begin, 0), n) for edge in (span.begin, span.end))
            if first < last:
                at = begin + first - span.begin
                positions[:, first:last] = span.begin + extra + span.positions(axes)[:, at : at + last - first]
            positions[:, last:] += np.int32(span.extra_positions)
            extra += span.extra_positions
        return positions


def spans_between(spans: Iterable[MediaSpan], begin: int, end: int) -> Iterator[MediaSpan]:
    """The parts of the spans that lie in inputs [begin, end)."""
    for span in spans:
        first, last = max(span.begin, begin), min(span.end, end)
        if first < last:
            yield MediaSpan(first, last, span.item, span.offset + first - span.begin)


def common_media(mine: Iterable[MediaIdentity], theirs: Iterable[MediaIdentity], n: int) -> int:
    """How many of the first `n` inputs, whose tokens are the same, have the same media."""
    for a, b in zip_longest(mine, theirs):
        first = min(span.begin for span in (a, b) if span is not None)
        if first >= n:
            return n
        if a is None or b is None or (a.begin, a.offset, a.hash) != (b.begin, b.offset, b.hash):
            return first
        if a.end != b.end:
            return min(n, a.end, b.end)
    return n


def _share_batch(n_images: int, n_inputs: int, lookahead: Lookahead) -> bool:
    """Whether an image behind so many others and so many inputs can share their batch."""
    return n_inputs < lookahead.inputs and (lookahead.images is None or n_images < lookahead.images)


def groups_of(same_batch: Iterable[int], images: Collection[int] = ()) -> tuple[Group, ...]:
    """Groups of inputs from their `same_batch` numbers. Raises ValueError for one below 0 or beyond the end.

    The inputs of `images`, for cross-attention, are groups even alone: a model may want them in batches of their own.
    """
    groups: list[Group] = []
    n = begin = end = 0
    for i, following in enumerate(same_batch):
        n = i + 1
        if following < 0:
            raise ValueError(f"same_batch counts the inputs that follow, got {following} at input {i}")
        if i >= end:
            if end - begin > 1 or (begin in images and end > begin):
                groups.append((begin, end))
            begin = i
        end = max(end, i + 1 + following)
    if end > n:
        raise ValueError(f"the group that begins at input {begin} needs inputs up to {end}, there are {n}")
    if end - begin > 1 or (begin in images and end > begin):
        groups.append((begin, end))
    return tuple(groups)


def floor_cut(at: int, groups: Sequence[Group]) -> int:
    """The last index up to `at` where a cut splits no group."""
    group = _around(at, groups)
    return at if group is None else group[0]


def ceil_cut(at: int, groups: Sequence[Group]) -> int:
    """The first index from `at` on where a cut splits no group."""
    group = _around(at, groups)
    return at if group is None else group[1]


def _around(at: int, groups: Sequence[Group]) -> Group | None:
    """The group that a cut before input `at` would split."""
    if not groups:
        return None
    before = bisect_left(groups, (at,)) - 1
    if before >= 0 and groups[before][1] > at:
        return groups[before]
    return None
