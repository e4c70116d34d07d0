"""Pictures on one plain colour, as people draw them who try the model: any ground, pure colours, things of any size.

Half of the training pictures are of this kind: one thing that is as large as it likes, or several in their places.
Drawn by the same few operations as those of `draw.py`, so a number means the same picture everywhere.
"""

from __future__ import annotations

from random import Random

import numpy as np

from .draw import GROUNDS, RGB, Colour, Floats, Pixels, contrast, stamp
from .scene import COLOURS, PLACES, SHAPES, Scene, Thing, draw_scene, held_out, pick

__all__ = ["alone", "plain"]

PURE: dict[str, tuple[Colour, ...]] = {
    "red": ((255, 0, 0),), "orange": ((255, 165, 0), (255, 128, 0)), "yellow": ((255, 255, 0),),
    "green": ((0, 128, 0), (0, 255, 0), (0, 200, 0)), "blue": ((0, 0, 255),), "purple": ((128, 0, 128), (160, 32, 240)),
    "white": ((255, 255, 255),), "black": ((0, 0, 0),),
}  # fmt: skip
"""Colours as CSS and Pillow name them, and as people write them by numbers."""
PAPER: tuple[Colour, ...] = ((255, 255, 255), (255, 255, 255), (0, 0, 0), (128, 128, 128), (211, 211, 211))
JITTER = 12.0
LEAST_CONTRAST = 150.0
"""Sum of differences over the channels between a thing and its ground, at least."""
SMALLEST, LARGEST = 60, 200
"""Pixels along the width."""
RADIUS = (0.09, 0.46)
"""Of a thing alone, over the shorter side."""
NEAR = 0.11
"""How far the middle of a thing is from the middle of its place at most, over the sides: a place is a third wide."""
MOST_NOISE = 8.0


def plain(seed: int, *, crowded: bool = False) -> tuple[Scene, Pixels]:
    """Scene number `seed` for training: one thing alone two times out of three, unless it is to be crowded."""
    rng = Random(seed)
    if rng.random() < (0.75 if crowded else 0.65):
        return alone(seed, training=True)
    scene = draw_scene(rng, training=True, crowded=crowded)
    canvas, colours = _canvas(scene, rng)
    side = min(canvas.shape[:2]) / 3
    for thing, colour in zip(scene.things, colours, strict=True):
        x, y = _middle(thing.place, canvas, 0.02, rng)
        stamp(canvas, thing.shape, colour, (x, y), side * (0.28 + 0.16 * rng.random()), _turn(rng))
    return scene, _finished(canvas, rng, seed)


def alone(seed: int, *, training: bool = False) -> tuple[Scene, Pixels]:
    """Scene number `seed` and its picture, uint8 `[height, width, 3]`: one thing; in training none that is held out."""
    rng = Random(f"alone {seed}")  # not the numbers by which `plain` chose this kind
    thing = _thing(rng)
    while training and held_out(thing):
        thing = _thing(rng)
    scene = Scene((thing,))
    canvas, colours = _canvas(scene, rng)
    x, y = _middle(thing.place, canvas, NEAR, rng)
    height, width = canvas.shape[:2]
    most = min(x, y, width - x, height - y) / min(height, width)
    radius = RADIUS[0] + (min(most, RADIUS[1]) - RADIUS[0]) * rng.random()
    stamp(canvas, thing.shape, colours[0], (x, y), min(height, width) * radius, _turn(rng))
    return scene, _finished(canvas, rng, seed)


def _thing(rng: Random) -> Thing:
    """Every other one is in the middle, where things can be large."""
    place = PLACES.index("in the middle") if rng.random() < 0.5 else int(rng.random() * len(PLACES))
    return Thing(pick(rng, SHAPES), pick(rng, COLOURS), place)


def _canvas(scene: Scene, rng: Random) -> tuple[Floats, list[Colour]]:
    """A plain ground that every thing stands out from, and the things' colours."""
    width = SMALLEST + int(rng.random() * (LARGEST - SMALLEST + 1))
    height = int(width * (0.75 + 0.5 * rng.random()))
    colours = [_colour(thing.colour, rng) for thing in scene.things]
    ground = _ground(rng)
    while any(contrast(ground, colour) < LEAST_CONTRAST for colour in colours):
        ground = _ground(rng)
    return np.zeros((height, width, 3)) + np.array(ground), colours


def _colour(name: str, rng: Random) -> Colour:
    """From the colour of `draw.py` to a pure one, a third of them pure."""
    pure, share = pick(rng, PURE[name]), min(1.0, 1.5 * rng.random())
    jitter = 0.0 if share == 1.0 else JITTER
    red, green, blue = (
        min(255.0, max(0.0, a + share * (b - a) + jitter * (2 * rng.random() - 1)))
        for a, b in zip(RGB[name], pure, strict=True)
    )
    return red, green, blue


def _ground(rng: Random) -> Colour:
    """Any colour at all, a quiet one, paper, or a colour that things have."""
    kind = int(rng.random() * 4)
    if kind == 0:
        return 255 * rng.random(), 255 * rng.random(), 255 * rng.random()
    return pick(rng, PAPER) if kind == 1 else pick(rng, GROUNDS) if kind == 2 else _colour(pick(rng, COLOURS), rng)


def _middle(place: int, canvas: Floats, near: float, rng: Random) -> tuple[float, float]:
    height, width = canvas.shape[:2]
    x = (place % 3 + 0.5) / 3 + near * (2 * rng.random() - 1)
    y = (place // 3 + 0.5) / 3 + near * (2 * rng.random() - 1)
    return width * x, height * y


def _turn(rng: Random) -> float:
    """Tangent of half an angle; every other thing stands straight."""
    return 0.1 * (2 * rng.random() - 1) if rng.random() < 0.5 else 0.0


def _finished(canvas: Floats, rng: Random, seed: int) -> Pixels:
    """Every other picture has noise."""
    if rng.random() < 0.5:
        noise = np.random.RandomState(seed % 2**32).random_sample(canvas.shape) - 0.5
        canvas = canvas + 2 * MOST_NOISE * rng.random() * noise
    return np.clip(canvas + 0.5, 0, 255).astype(np.uint8)
