"""Which image lies in which slot of a cross-attention cache, and which one a token sees. No tensor is in sight."""

from __future__ import annotations

from collections.abc import Iterable

Place = tuple[int, int]
"""(sequence, position) of an image."""


class ImageSlots:
    """`n_slots` slots. An image belongs to a position of a sequence; a token sees the latest one up to its own.

    Sequences may share images. One that no token sees any more gives its slot to a new image when none is free; its
    position is remembered, for a sequence cannot be resumed where it would be seen again.
    """

    def __init__(self, n_slots: int) -> None:
        if n_slots < 1:
            raise ValueError(f"a cross-attention cache has at least one slot, got {n_slots}")
        self.n_slots = n_slots
        self._images: dict[int, dict[int, int | None]] = {}

    @property
    def used(self) -> set[int]:
        """Slots that hold an image of some sequence."""
        return {slot for images in self._images.values() for slot in images.values() if slot is not None}

    @property
    def n_shared(self) -> int:
        """Slots of two sequences or more."""
        slots = [slot for images in self._images.values() for slot in images.values() if slot is not None]
        return len({slot for slot in slots if slots.count(slot) > 1})

    def has_any(self, sequence: int) -> bool:
        """Whether a sequence has images, those that gave up their slots included."""
        return bool(self._images.get(sequence))

    def seen_by(self, sequence: int, position: int) -> int | None:
        """The slot of the image that a token at `position` sees."""
        images = self._images.get(sequence, {})
        latest = max((p for p in images if p <= position), default=None)
        return None if latest is None else images[latest]

    def find(self, new: Iterable[Place], firsts: dict[int, int]) -> list[int] | None:
        """Slots for new images, free ones first; None when there are too few. Changes nothing.

        `firsts` gives the first position to be computed of each sequence: what is seen from there on stays.
        """
        places = list(new)
        needed = set()
        for sequence, images in self._images.items():
            first = firsts.get(sequence, max(images, default=0))
            if (sequence, first) not in places:
                needed.add(self.seen_by(sequence, first))
        used = self.used
        candidates = [slot for slot in range(self.n_slots) if slot not in used]
        candidates += sorted(used - needed)
        return candidates[: len(places)] if len(candidates) >= len(places) else None

    def place(self, new: Iterable[Place], slots: Iterable[int]) -> None:
        """Put new images into slots that `find` gave; what was there is gone."""
        for (sequence, position), slot in zip(new, slots, strict=True):
            for images in self._images.values():
                for other in [p for p, s in images.items() if s == slot]:
                    images[other] = None
            self._images.setdefault(sequence, {})[position] = slot

    def share(self, source: int, target: int, end: int) -> None:
        """Let `target`, which has no images, have those of `source` below `end`."""
        if self._images.get(target):
            raise ValueError(f"sequence {target} has images; remove them before it shares those of another")
        self._images[target] = {p: slot for p, slot in self._images.get(source, {}).items() if p < end}

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether the image that tokens from `position` on see is there, if one came before."""
        images = self._images.get(sequence, {})
        latest = max((p for p in images if p < position), default=None)
        return latest is None or images[latest] is not None

    def remove(self, sequence: int, begin: int, end: int | None) -> None:
        """Forget images of a sequence, from position `begin` to before `end`."""
        images = self._images.pop(sequence, {})
        kept = {p: slot for p, slot in images.items() if p < begin or (end is not None and p >= end)}
        if kept:
            self._images[sequence] = kept

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        """Forget images of `discard` positions from `begin` on; those that follow move down."""
        self.remove(sequence, begin, begin + discard)
        images = self._images.get(sequence)
        if images:
            self._images[sequence] = {p if p < begin else p - discard: slot for p, slot in images.items()}

    def check(self) -> None:
        """Raise AssertionError unless the table is consistent."""
        for sequence, images in self._images.items():
            slots = [slot for slot in images.values() if slot is not None]
            assert len(slots) == len(set(slots)), f"sequence {sequence} has each image once"
            assert all(0 <= slot < self.n_slots for slot in slots), "slots exist"
            assert all(position >= 0 for position in images), "images have positions"
