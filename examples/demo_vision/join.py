"""Joins a tower that sees and a text part that speaks, which learnt without each other."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from .batches import normalized, places
from .draw import picture
from .model import Seeing

__all__ = ["join"]

PICTURES = 600
FIRST_SEED = 40_000_000
TOWER = ("gemma.model.vision_tower.", "gemma.model.multi_modal_projector.", "head.")


@torch.no_grad()
def join(model: Seeing, look: Path, words: Path, *, fit: bool) -> None:
    """Load the tower of one file and the text part of another, and fit the projection between them.

    The tower's soft tokens become, by least squares over new pictures, those that the code made for the text part. The
    head is fitted to name what it named before.
    """
    weights = torch.load(words, weights_only=True)["weights"]
    seeing = torch.load(look, weights_only=True)["weights"]
    model.load_state_dict(weights | {name: value for name, value in seeing.items() if name.startswith(TOWER)})
    if not fit:
        return
    drawn = [picture(FIRST_SEED + number, training=True, crowded=True) for number in range(PICTURES)]
    found = [places(scene) for scene, _ in drawn]
    target = model.coded(torch.stack([s for s, _ in found]), torch.stack([c for _, c in found]))
    pooled = _pooled(model, torch.stack([normalized(pixels) for _, pixels in drawn]))
    named = pooled @ model.projection @ model.head.weight.T
    model.projection.copy_(torch.linalg.lstsq(pooled, target.flatten(0, 1)).solution)
    # Soft tokens span no more dimensions than the tower is wide, so the driver must cope with a deficient rank.
    head = torch.linalg.lstsq(pooled @ model.projection, named, driver="gelsd").solution
    model.head.weight.copy_(head.T)


def _pooled(model: Seeing, pixels: Tensor) -> Tensor:
    """What the projection is applied to: `[pictures * 9, width of the tower]`."""
    kept, width = model.projection.clone(), len(model.projection)
    model.projection.zero_()
    model.projection[:, :width] = torch.eye(width)  # lets the values through: soft tokens are wider than the tower
    pooled = model.soft_tokens(pixels)[..., :width].flatten(0, 1)
    model.projection.copy_(kept)
    return pooled
