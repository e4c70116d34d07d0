"""Pictures and conversations as tensors, drawn anew for every batch by a process of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from .draw import Pixels, picture
from .model import IMAGE_SIZE
from .pillow import as_jpeg, one_by_pillow
from .plain import alone, plain
from .scene import COLOURS, PLACES, SHAPES, Scene, draw_scene
from .talk import Piece, conversation, description
from .tokens import IDS, hugging_face

__all__ = ["NOTHING", "Batch", "Sample", "batches", "drills", "normalized", "places", "together"]

NOTHING = -100
"""Target of a position that nothing is learnt at."""
BATCHES = 8
"""So many are drawn at a time, and sorted by the length of their conversations: little of a batch is padding."""


@dataclass(frozen=True)
class Batch:
    """Pictures `[n, 3, 72, 72]`, what stands where, and conversations.

    `shapes`, `colours`: `[n, 9]`, 0 for an empty place. `ids`, `targets`, `types`: `[n, positions]`; targets are
    shifted already, types are 1 at soft tokens. `with_image`: `[n]`, whether the conversation has the picture.
    """

    pixels: Tensor
    shapes: Tensor
    colours: Tensor
    ids: Tensor
    targets: Tensor
    types: Tensor
    with_image: Tensor


@dataclass(frozen=True)
class Sample:
    """A picture `[3, 72, 72]`, what stands where, and a conversation with the tokens that are learnt in it."""

    pixels: Tensor
    shapes: Tensor
    colours: Tensor
    ids: list[int]
    learn: list[bool]


def normalized(pixels: Pixels) -> Tensor:
    """What transformers' image processor makes of a picture: 72 x 72, bilinear, [-1, 1], channels first."""
    small = Image.fromarray(pixels).resize((IMAGE_SIZE, IMAGE_SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1).float() / 127.5 - 1


def places(scene: Scene) -> tuple[Tensor, Tensor]:
    """Shape and colour of each of the nine places, counted from 1; 0 is nothing."""
    shapes, colours = torch.zeros(len(PLACES), dtype=torch.long), torch.zeros(len(PLACES), dtype=torch.long)
    for thing in scene.things:
        shapes[thing.place] = 1 + SHAPES.index(thing.shape)
        colours[thing.place] = 1 + COLOURS.index(thing.colour)
    return shapes, colours


class _Batches(IterableDataset[Batch]):
    def __init__(self, tokenizer: Path, seed: int, size: int, kind: str) -> None:
        self.tokenizer, self.seed, self.size, self.kind = tokenizer, seed, size, kind

    def __iter__(self) -> Iterator[Batch]:
        torch.set_num_threads(1)
        encode, seed = _encoder(self.tokenizer), self.seed
        while True:
            samples = [_sample(seed + i, encode, self.kind) for i in range(self.size * BATCHES)]
            seed += len(samples)
            samples.sort(key=lambda sample: len(sample.ids))
            starts = list(range(0, len(samples), self.size))
            Random(seed).shuffle(starts)
            for start in starts:
                yield together(samples[start : start + self.size])


def batches(tokenizer: Path, seed: int, size: int, kind: str) -> Iterable[Batch]:
    """Batches of `size` training scenes, numbered from `seed` on.

    Of kind "look" and "match", pictures with many things that nobody talks about; "words" and "practise", conversations
    without pictures; "speak", both. Every other picture has a plain ground.
    """
    return DataLoader(_Batches(tokenizer, seed, size, kind), batch_size=None, num_workers=1, prefetch_factor=4)


class _Drills(IterableDataset[list[Sample]]):
    def __init__(self, tokenizer: Path, seed: int, size: int) -> None:
        self.tokenizer, self.seed, self.size = tokenizer, seed, size

    def __iter__(self) -> Iterator[list[Sample]]:
        torch.set_num_threads(1)
        encode = _encoder(self.tokenizer)
        for first in count(self.seed, self.size):
            yield [_drill(first + i, encode) for i in range(self.size)]


def drills(tokenizer: Path, seed: int, size: int) -> Iterable[list[Sample]]:
    """Lists of `size` pictures, numbered from `seed` on, each with the question for a description.

    Four of five show one thing alone, of which nothing is held out: a tower that never saw a white star in the middle
    took one for a circle.
    """
    return DataLoader(_Drills(tokenizer, seed, size), batch_size=None, num_workers=1, prefetch_factor=4)


def _encoder(path: Path) -> Any:
    tokenizer = hugging_face(path)

    @cache
    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
        return ids

    return encode


def _sample(seed: int, encode: Any, kind: str) -> Sample:
    if kind in ("words", "practise"):
        scene, pixels = draw_scene(Random(seed), training=True), torch.empty(0)
    else:
        crowded = kind in ("look", "match")
        scene, drawn = plain(seed, crowded=crowded) if seed % 2 else picture(seed, training=True, crowded=crowded)
        pixels = normalized(drawn)
    return _sampled(scene, pixels, [] if kind in ("look", "match") else conversation(scene, Random(seed)), encode)


def _drill(seed: int, encode: Any) -> Sample:
    rng = Random(f"drill {seed}")
    kind = seed % 20
    if kind < 2:
        scene, image = one_by_pillow(seed)
    else:
        scene, drawn = alone(seed) if kind < 16 else plain(seed, crowded=True) if kind == 16 else picture(seed)
        image = Image.fromarray(drawn)
    if rng.random() < 0.5:
        scene, image = _upside_down(scene, image)
    if rng.random() < 0.25:
        image = as_jpeg(image)
    return _sampled(scene, normalized(np.array(image)), description(scene), encode)


def _upside_down(scene: Scene, image: Image.Image) -> tuple[Scene, Image.Image]:
    """Stars stand on two tips and on one; a picture with a triangle, which has its name upright only, stays."""
    if any(thing.shape == "triangle" for thing in scene.things):
        return scene, image
    things = [replace(thing, place=thing.place + 6 - 6 * (thing.place // 3)) for thing in scene.things]
    return Scene(tuple(sorted(things, key=lambda thing: thing.place))), image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


def _sampled(scene: Scene, pixels: Tensor, talk: Sequence[Piece], encode: Any) -> Sample:
    pieces = [(encode(piece.text), piece.learn) for piece in talk]
    ids, learn = [i for ids, _ in pieces for i in ids], [learn for ids, learn in pieces for _ in ids]
    return Sample(pixels, *places(scene), ids, learn)


def together(samples: Sequence[Sample]) -> Batch:
    """Samples of any lengths as one batch."""
    longest = max(len(sample.ids) for sample in samples)
    ids = torch.tensor([sample.ids + [0] * (longest - len(sample.ids)) for sample in samples], dtype=torch.long)
    learn = torch.tensor([sample.learn + [False] * (longest - len(sample.ids)) for sample in samples], dtype=torch.bool)
    types = (ids == IDS["<image_soft_token>"]).long()
    return Batch(
        torch.stack([sample.pixels for sample in samples]),
        torch.stack([sample.shapes for sample in samples]),
        torch.stack([sample.colours for sample in samples]),
        ids[:, :-1],
        torch.where(learn, ids, NOTHING)[:, 1:],
        types[:, :-1],
        types.any(dim=1),
    )
