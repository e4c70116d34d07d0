"""Joins a tower that sees and a text part that speaks, which learnt without each other."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as fn

from .batches import normalized, places
from .draw import picture
from .model import N_NAMES, Seeing

__all__ = ["fit_code", "fit_projection", "join"]

PICTURES = 600
FIRST_SEED = 40_000_000
TOWER = ("gemma.model.vision_tower.", "gemma.model.multi_modal_projector.", "head.")


def join(model: Seeing, look: Path, words: Path) -> None:
    """Load the tower of one file and the text part of another, with its code."""
    weights = torch.load(words, weights_only=True)["weights"]
    seeing = torch.load(look, weights_only=True)["weights"]
    model.load_state_dict(weights | {name: value for name, value in seeing.items() if name.startswith(TOWER)})


@torch.no_grad()
def fit_projection(model: Seeing) -> None:
    """Make soft tokens of pictures those of the code, as near as least squares come over new pictures.

    The head is fitted to name what it named before.
    """
    pixels, shapes, colours = _pictures(crowded=True)
    target = model.coded(shapes, colours)
    pooled = _pooled(model, pixels)
    named = pooled @ model.projection @ model.head.weight.T
    model.projection.copy_(torch.linalg.lstsq(pooled, target.flatten(0, 1)).solution)
    # Soft tokens span no more dimensions than the tower is wide, so the driver must cope with a deficient rank.
    head = torch.linalg.lstsq(pooled @ model.projection, named, driver="gelsd").solution
    model.head.weight.copy_(head.T)


@torch.no_grad()
def fit_code(model: Seeing) -> None:
    """Make the code that of the soft tokens which the text part has learnt to read."""
    pixels, shapes, colours = _pictures()
    where = torch.arange(N_NAMES[2]).expand_as(shapes)
    names = (fn.one_hot(ids, n) for ids, n in zip((shapes, colours, where), N_NAMES, strict=True))
    chosen = torch.cat(list(names), dim=-1).flatten(0, 1).float()
    # Every row chooses one of each kind, so the rank is deficient here, too.
    code = torch.linalg.lstsq(chosen, model.soft_tokens(pixels).flatten(0, 1), driver="gelsd").solution
    for embedding, part in zip(model.code, torch.split(code, N_NAMES), strict=True):
        embedding.weight.copy_(part)  # type: ignore[operator]  # a ModuleList does not tell what it holds


def _pictures(*, crowded: bool = False) -> tuple[Tensor, Tensor, Tensor]:
    """Pixels, shapes and colours; every other picture is crowded unless all are to be."""
    drawn = [
        picture(FIRST_SEED + number, training=True, crowded=crowded or bool(number % 2)) for number in range(PICTURES)
    ]
    found = [places(scene) for scene, _ in drawn]
    pixels = torch.stack([normalized(pixels) for _, pixels in drawn])
    return pixels, torch.stack([shapes for shapes, _ in found]), torch.stack([colours for _, colours in found])


def _pooled(model: Seeing, pixels: Tensor) -> Tensor:
    """What the projection is applied to: `[pictures * 9, width of the tower]`."""
    kept, width = model.projection.clone(), len(model.projection)
    model.projection.zero_()
    model.projection[:, :width] = torch.eye(width)  # lets the values through: soft tokens are wider than the tower
    pooled = model.soft_tokens(pixels)[..., :width].flatten(0, 1)
    model.projection.copy_(kept)
    return pooled
