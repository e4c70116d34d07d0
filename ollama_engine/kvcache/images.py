"""Slots of a cross-attention cache: which image lies where, and which ones a token sees. Numbers, no tensors."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

Place = tuple[int, int]
"""(sequence, position) of an image."""


class ImageSlots:
    """`n_slots` slots. An image belongs to a position of a sequence. A token sees the latest run up to itself: images
    at consecutive positions, with nothing between them.

    Sequences may share images. When no slot is free, an image that no token sees any more loses its slot to a new one.
    Its position is kept, because the sequence cannot be resumed where a token would see the lost image.
    """

    def __init__(self, n_slots: int) -> None:
        if n_slots < 1:
            raise ValueError(f"a cross-attention cache has at least one slot, got {n_slots}")
        self.n_slots = n_slots
        self._images: dict[int, dict[int, int | None]] = {}
        """{sequence: {position: slot, None where it was given up}}"""
        self._n_owners = [0] * n_slots
        self.n_rows = [0] * n_slots
        """Rows of the image in each slot."""

    @property
    def used(self) -> set[int]:
        """Slots that hold an image of some sequence."""
        return {slot for slot, n in enumerate(self._n_owners) if n}

    @property
    def n_shared(self) -> int:
        """Number of slots that two sequences or more share."""
        return sum(n > 1 for n in self._n_owners)

    def of(self, sequence: int) -> dict[int, int | None]:
        """{position: slot} of a sequence's images, ascending; None for those that gave up their slots."""
        return dict(sorted(self._images.get(sequence, {}).items()))

    def seen_by(self, sequence: int, position: int) -> tuple[int, ...]:
        """The slots of the images that a token at `position` sees, as far as they have slots."""
        images = self._images.get(sequence, {})
        slots = (images[p] for p in _latest_run(images, position))
        return tuple(slot for slot in slots if slot is not None)

    def find(self, new: Collection[Place], firsts: Mapping[int, int]) -> list[int] | None:
        """Slots for new images, free ones first; None when there are too few. Changes nothing.

        `firsts` gives the first position that the batch computes of each sequence: images seen from there on stay.
        """
        if not new:
            return []
        found = self.available(firsts, new)
        return found[: len(new)] if len(found) >= len(new) else None

    def available(
        self, firsts: Mapping[int, int] | None = None, new: Collection[Place] = (), without: Collection[int] = ()
    ) -> list[int]:
        """Slots that can take an image after removing the sequences of `without`, free slots first."""
        held, needed = set[int | None](), set[int]()
        for sequence, images in self._images.items():
            if sequence in without:
                continue
            held.update(images.values())
            first = max(images) if firsts is None else firsts.get(sequence, max(images))
            # A new image ends what its row sees of earlier ones, unless it continues their run.
            if (sequence, first) not in new or first - 1 in images:
                needed.update(self.seen_by(sequence, first))
        free = [slot for slot in range(self.n_slots) if slot not in held]
        return free + sorted(slot for slot in held - needed if slot is not None)

    def place(self, new: Iterable[Place], slots: Iterable[int], n_rows: Iterable[int]) -> None:
        """Put new images of so many rows into slots that `find` returned; the images in those slots are lost."""
        for (sequence, position), slot, rows in zip(new, slots, n_rows, strict=True):
            self.n_rows[slot] = rows
            if self._n_owners[slot]:
                for images in self._images.values():
                    for other in [p for p, s in images.items() if s == slot]:
                        images[other] = None
            self._images.setdefault(sequence, {})[position] = slot
            self._n_owners[slot] = 1

    def restore(self, sequence: int, images: Mapping[int, int | None], n_rows: Iterable[int]) -> None:
        """Give a sequence images behind those it has, {position: slot from `available`, or None for a lost image}.

        `n_rows` has the rows of each that has a slot.
        """
        if images and max(self._images.get(sequence, ()), default=-1) >= min(images):
            raise ValueError(f"sequence {sequence} has an image at {min(images)} or behind it")
        kept = {p: slot for p, slot in images.items() if slot is not None}
        self.place([(sequence, p) for p in kept], kept.values(), n_rows)
        if images:
            self._images.setdefault(sequence, {}).update(images)

    def share(self, source: int, target: int, end: int) -> None:
        """Share the images of `source` below position `end` with `target`, which has none."""
        if self._images.get(target):
            raise ValueError(f"sequence {target} has images; remove them before it gets others")
        shared = {p: slot for p, slot in self._images.get(source, {}).items() if p < end}
        if shared:
            self._images[target] = shared
        self._count(shared.values(), 1)

    def _count(self, slots: Iterable[int | None], by: int) -> None:
        for slot in slots:
            if slot is not None:
                self._n_owners[slot] += by

    def can_resume(self, sequence: int, position: int) -> bool:
        """Whether all images before `position` that a token there sees still have their slots."""
        images = self._images.get(sequence, {})
        return all(images[p] is not None for p in _latest_run(images, position - 1))

    def remove(self, sequence: int, begin: int = 0, end: int | None = None) -> None:
        """Forget images of a sequence, from position `begin` to before `end`."""
        images = self._images.pop(sequence, {})
        kept = {p: slot for p, slot in images.items() if p < begin or (end is not None and p >= end)}
        if kept:
            self._images[sequence] = kept
        self._count((slot for p, slot in images.items() if p not in kept), -1)

    def shift(self, sequence: int, begin: int, discard: int) -> None:
        """Forget the images of `discard` positions from `begin` on; later images move down."""
        self.remove(sequence, begin, begin + discard)
        images = self._images.get(sequence)
        if images:
            self._images[sequence] = {p if p < begin else p - discard: slot for p, slot in images.items()}

    def check(self) -> None:
        """Raise AssertionError unless the table is consistent."""
        n_owners = [0] * self.n_slots
        for sequence, images in self._images.items():
            slots = [slot for slot in images.values() if slot is not None]
            assert images, f"sequence {sequence} has images"
            assert len(slots) == len(set(slots)), f"sequence {sequence} has each image once"
            assert all(0 <= slot < self.n_slots for slot in slots), "slots exist"
            assert all(position >= 0 for position in images), "images have positions"
            for slot in slots:
                n_owners[slot] += 1
        assert n_owners == self._n_owners, "owners are counted"


def _latest_run(images: Collection[int], position: int) -> list[int]:
    """Positions of the last images up to `position` that have nothing between them, ascending."""
    latest = max((p for p in images if p <= position), default=None)
    if latest is None:
        return []
    first = latest
    while first - 1 in images:
        first -= 1
    return list(range(first, latest + 1))
