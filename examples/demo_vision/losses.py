"""The losses of the stages: of a batch, and of each picture where the hardest are learnt from."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as fn

from .batches import NOTHING, Batch
from .model import Seeing

__all__ = [
    "drill_loss", "drill_losses", "look_loss", "match_loss", "practise_loss", "settle_loss", "settle_losses",
    "speak_loss", "tell_loss", "words_loss",
]  # fmt: skip

NOISE = 0.2
"""Standard deviation of what is added to soft tokens made of code, which those of pictures scatter around."""
HARD = 0.25
"""Weight of a hard picture's description, all of its words, next to a word of conversations."""
NEAR = 2.0
"""Weight of the distance from the code, over the variance of the code, next to that of what the head names."""


def look_loss(model: Seeing, batch: Batch) -> Tensor:
    """Cross entropy of the shapes, the colours and the places that the head names."""
    return _seen_loss(model, model.soft_tokens(batch.pixels), batch)


def words_loss(model: Seeing, batch: Batch) -> Tensor:
    """Cross entropy of the answers' tokens, with soft tokens made of code."""
    soft = model.coded(batch.shapes, batch.colours)
    return _spoken_loss(model, soft + NOISE * torch.randn_like(soft), batch)


def match_loss(model: Seeing, batch: Batch) -> Tensor:
    """How far soft tokens are from those of the code, which stays as it is, and what the head does not name."""
    soft = model.soft_tokens(batch.pixels)
    code = model.coded(batch.shapes, batch.colours).detach()
    return NEAR * fn.mse_loss(soft, code) / code.var() + _seen_loss(model, soft, batch)


def practise_loss(model: Seeing, batch: Batch) -> Tensor:
    """As `words_loss`, with more noise and a code that stays as it is."""
    soft = model.coded(batch.shapes, batch.colours).detach()
    return _spoken_loss(model, soft + 2 * NOISE * torch.randn_like(soft), batch)


def speak_loss(model: Seeing, batch: Batch) -> Tensor:
    """Cross entropy of the answers' tokens, with pictures."""
    return _spoken_loss(model, model.soft_tokens(batch.pixels), batch)


def tell_loss(model: Seeing, batch: Batch) -> Tensor:
    """As `speak_loss`, with a tower that stays as it is."""
    with torch.no_grad():
        soft = model.soft_tokens(batch.pixels)
    return _spoken_loss(model, soft, batch)


def drill_loss(model: Seeing, batch: Batch) -> Tensor:
    """As `match_loss`."""
    return drill_losses(model, batch).mean()


def settle_loss(model: Seeing, batch: Batch) -> Tensor:
    """What is said and seen of hard pictures; a batch of conversations comes beside them."""
    return HARD * settle_losses(model, batch).mean()


def drill_losses(model: Seeing, batch: Batch) -> Tensor:
    """As `match_loss`, of each picture, and summed over its places."""
    soft = model.soft_tokens(batch.pixels)
    code = model.coded(batch.shapes, batch.colours).detach()
    near = (soft - code).pow(2).mean(-1) / code.var()
    return NEAR * near.sum(1) + _seen_losses(model, soft, batch).sum(1)


def settle_losses(model: Seeing, batch: Batch) -> Tensor:
    """What is said of each picture, summed over its words, and half of what the head does not name."""
    soft = model.soft_tokens(batch.pixels)
    logits = model(batch.ids, soft, batch.types).transpose(1, 2)
    said = fn.cross_entropy(logits, batch.targets, ignore_index=NOTHING, reduction="none").sum(1)
    return said + 0.5 * _seen_losses(model, soft, batch).sum(1)


def _seen_losses(model: Seeing, soft: Tensor, batch: Batch) -> Tensor:
    """`[pictures, places]`."""
    places = torch.arange(soft.shape[1]).expand(len(soft), -1)
    names = (batch.shapes, batch.colours, places)
    losses = [
        fn.cross_entropy(found.transpose(1, 2), wanted, reduction="none")
        for found, wanted in zip(model.seen(soft), names, strict=True)
    ]
    return torch.stack(losses).sum(0)


def _seen_loss(model: Seeing, soft: Tensor, batch: Batch) -> Tensor:
    return _seen_losses(model, soft, batch).mean()


def _spoken_loss(model: Seeing, soft: Tensor, batch: Batch) -> Tensor:
    logits = model(batch.ids, soft[batch.with_image], batch.types)
    return fn.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), ignore_index=NOTHING)
