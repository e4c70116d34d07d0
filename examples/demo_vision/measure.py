"""How well the network sees and answers on pictures that it has not learnt from."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from .batches import normalized, places
from .draw import Pixels, picture
from .model import Seeing
from .plain import alone
from .questions import DESCRIBE, describe
from .scene import Scene
from .talk import prompt
from .tokens import IDS

__all__ = ["FIRST_SEED", "answered", "seen"]

FIRST_SEED = 1_000_000
"""Number of the first picture that training measures itself by; those below 1000 are kept for the end."""
LONGEST = 48


@torch.no_grad()
def seen(model: Seeing, numbers: Iterable[int]) -> float:
    """Share of pictures whose nine places the head names without a mistake, every other one of one thing alone."""
    drawn = [(alone if number % 2 else picture)(FIRST_SEED + number) for number in numbers]
    shapes, colours, _ = model.seen(model.soft_tokens(torch.stack([normalized(pixels) for _, pixels in drawn])))
    right = 0
    for i, (scene, _) in enumerate(drawn):
        shape, colour = places(scene)
        right += bool((shapes[i].argmax(-1) == shape).all() and (colours[i].argmax(-1) == colour).all())
    return right / len(drawn)


@torch.no_grad()
def answered(model: Seeing, tokenizer: Any, numbers: Iterable[int], *, coded: bool) -> float:
    """Share of pictures that are described without a mistake, every other one of one thing alone.

    With `coded`, of scenes that the code stands for.
    """
    drawn = [(alone if number % 2 else picture)(FIRST_SEED + number) for number in numbers]
    soft = _soft(model, drawn, coded)
    start = torch.tensor(tokenizer.encode(prompt(DESCRIBE[0]), add_special_tokens=False))
    ids = start.repeat(len(drawn), 1)
    open_ = torch.ones(len(drawn), dtype=torch.bool)
    for _ in range(LONGEST):
        chosen = model(ids, soft, (ids == IDS["<image_soft_token>"]).long())[:, -1].argmax(-1)
        ids = torch.cat([ids, torch.where(open_, chosen, 0)[:, None]], dim=1)
        open_ &= chosen != IDS["<end_of_turn>"]
        if not open_.any():
            break
    texts = tokenizer.batch_decode(ids[:, len(start) :], skip_special_tokens=True)
    return sum(text == describe(scene) for text, (scene, _) in zip(texts, drawn, strict=True)) / len(drawn)


def _soft(model: Seeing, drawn: list[tuple[Scene, Pixels]], coded: bool) -> Tensor:
    if not coded:
        return model.soft_tokens(torch.stack([normalized(pixels) for _, pixels in drawn]))
    found = [places(scene) for scene, _ in drawn]
    return model.coded(torch.stack([shapes for shapes, _ in found]), torch.stack([colours for _, colours in found]))
