"""Learning from the hardest pictures: a good model learns next to nothing from nineteen of twenty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from random import Random

import torch
from torch import Tensor

from .batches import Batch, Sample, together
from .model import Seeing

__all__ = ["hardest", "mirrored"]

KEPT = 4000
AGAIN = 0.6
"""What a loss counts, each time that its picture was learnt from: pictures that stay hard make way for others."""
FRESH = 8
"""So many of a batch are new ones, easy or not."""
MIRROR = torch.tensor([2, 1, 0, 5, 4, 3, 8, 7, 6])
"""Places in a mirror; all shapes are symmetric."""


def hardest(
    model: Seeing, drawn: Iterable[list[Sample]], losses: Callable[[Seeing, Batch], Tensor], size: int, *, mirror: bool
) -> Iterator[Batch]:
    """Batches of `size` of the samples that were drawn so far: those with the greatest losses, and a few new ones.

    `losses` of a batch: `[pictures]`. With `mirror`, half of the pictures are mirrored, and words do not fit them.
    """
    rng = Random(1)
    kept: list[tuple[float, Sample]] = []
    for new in drawn:
        with torch.no_grad():
            found = losses(model, together(new)).tolist()
        kept = sorted([*kept, *zip(found, new, strict=True)], key=lambda pair: -pair[0])[:KEPT]
        chosen = [*(sample for _, sample in kept[: size - FRESH]), *rng.sample(new, FRESH)]
        kept[: size - FRESH] = [(AGAIN * loss, sample) for loss, sample in kept[: size - FRESH]]
        yield together([mirrored(sample) if mirror and rng.random() < 0.5 else sample for sample in chosen])


def mirrored(sample: Sample) -> Sample:
    """The picture with left and right exchanged."""
    return replace(sample, pixels=sample.pixels.flip(2), shapes=sample.shapes[MIRROR], colours=sample.colours[MIRROR])
