"""Draws a scene: anti-aliased shapes on a plain, shaded, striped or chequered background, with a little noise.

Pixels come from numpy alone, by +, -, *, / and square roots, which IEEE 754 rounds alike everywhere, and from
`RandomState`, whose numbers numpy promises to keep: a seed means the same picture on every machine and version.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .scene import Scene, Thing, draw_scene, pick

__all__ = ["GROUNDS", "RGB", "Colour", "Floats", "Pixels", "contrast", "draw", "picture", "stamp"]

Floats: TypeAlias = NDArray[np.float64]
Pixels: TypeAlias = NDArray[np.uint8]
Colour: TypeAlias = tuple[float, float, float]

RGB: dict[str, Colour] = {
    "red": (214, 40, 40), "orange": (245, 130, 30), "yellow": (250, 222, 50), "green": (40, 160, 70),
    "blue": (40, 80, 210), "purple": (140, 50, 170), "white": (245, 245, 245), "black": (20, 20, 20),
}  # fmt: skip
GROUNDS: tuple[Colour, ...] = (
    (75, 75, 78), (128, 128, 128), (188, 190, 192), (222, 204, 172), (168, 194, 214), (112, 120, 102), (104, 86, 72),
    (72, 72, 98), (190, 160, 165),
)  # fmt: skip
JITTER = 18.0
"""How far a channel of a thing's colour is from that of RGB at most."""
LEAST_CONTRAST = 120.0
"""Between a thing and its background."""
SMALLEST, LARGEST = 64, 144
"""Pixels along the width."""
MOST_NOISE = 8.0
SIZE = (0.34, 0.46)
"""Radius of a thing over the shorter side of its place."""


def picture(seed: int, *, training: bool = False, crowded: bool = False) -> tuple[Scene, Pixels]:
    """Scene number `seed` and its picture, uint8 `[height, width, 3]`, RGB."""
    rng = Random(seed)
    scene = draw_scene(rng, training=training, crowded=crowded)
    return scene, draw(scene, rng, seed)


def draw(scene: Scene, rng: Random, seed: int) -> Pixels:
    """Draw a scene; `seed` (below 2**32) makes the noise, `rng` everything else."""
    width = SMALLEST + int(rng.random() * (LARGEST - SMALLEST + 1))
    height = int(width * (0.8 + 0.4 * rng.random()))
    colours = [_jittered(RGB[thing.colour], rng) for thing in scene.things]
    canvas = _background(width, height, colours, rng)
    for thing, colour in zip(scene.things, colours, strict=True):
        _paint(canvas, thing, colour, rng)
    noise = np.random.RandomState(seed % 2**32).random_sample(canvas.shape) - 0.5
    return np.clip(canvas + 2 * MOST_NOISE * rng.random() * noise + 0.5, 0, 255).astype(np.uint8)


def _jittered(colour: Colour, rng: Random) -> Colour:
    red, green, blue = (value + JITTER * (2 * rng.random() - 1) for value in colour)
    return red, green, blue


def contrast(one: Colour, other: Colour) -> float:
    """Sum of the differences over the channels."""
    return sum(abs(a - b) for a, b in zip(one, other, strict=True))


# -- backgrounds -------------------------------------------------------------------------------------------------------


def _background(width: int, height: int, things: list[Colour], rng: Random) -> Floats:
    """`[height, width, 3]`, in shades of one ground that every thing stands out from."""
    ground = pick(rng, GROUNDS)
    while any(contrast(ground, thing) < LEAST_CONTRAST for thing in things):
        ground = pick(rng, GROUNDS)
    shade = pick(rng, (_plain, _gradient, _stripes, _chequers))(width, height, rng)
    return np.array(ground) + (6.0 + 10.0 * rng.random()) * shade[..., None]


def _grid(width: int, height: int) -> tuple[Floats, Floats]:
    """Columns and rows as shares of the sides: `[1, width]`, `[height, 1]`."""
    return (np.arange(width) / width)[None, :], (np.arange(height) / height)[:, None]


def _plain(width: int, height: int, rng: Random) -> Floats:
    return np.full((height, width), 2 * rng.random() - 1)


def _gradient(width: int, height: int, rng: Random) -> Floats:
    x, y = _grid(width, height)
    return (2 * rng.random() - 1) * (2 * x - 1) + (2 * rng.random() - 1) * (2 * y - 1)


def _stripes(width: int, height: int, rng: Random) -> Floats:
    x, y = _grid(width, height)
    along = (3 + 9 * rng.random()) * pick(rng, (x + 0 * y, y + 0 * x, x + y, x - y + 1.0))
    return np.where(np.floor(along) % 2 == 0, 1.0, -1.0)


def _chequers(width: int, height: int, rng: Random) -> Floats:
    x, y = _grid(width, height)
    fields = 3 + 9 * rng.random()
    return np.where((np.floor(fields * x) + np.floor(fields * y)) % 2 == 0, 1.0, -1.0)


# -- shapes: signed distance from the edge in units of the radius, negative inside -------------------------------------


def _circle(x: Floats, y: Floats) -> Floats:
    return np.sqrt(x * x + y * y) - 0.95


def _ring(x: Floats, y: Floats) -> Floats:
    return np.abs(np.sqrt(x * x + y * y) - 0.74) - 0.24


def _square(x: Floats, y: Floats) -> Floats:
    return np.maximum(np.abs(x), np.abs(y)) - 0.84


def _cross(x: Floats, y: Floats) -> Floats:
    bar = np.maximum(np.abs(x) - 1.0, np.abs(y) - 0.3)
    return np.minimum(bar, np.maximum(np.abs(x) - 0.3, np.abs(y) - 1.0))


def _triangle(x: Floats, y: Floats) -> Floats:
    """Upright, with equal sides; y points down."""
    return np.maximum(0.8660254 * np.abs(x) - 0.5 * (y + 0.1), y + 0.1 - 0.2) - 0.5 + 0.0 * x


def _star(x: Floats, y: Floats) -> Floats:
    """Five lines cut out a pentagram: a point is inside when it is on the inner side of at least four of them."""
    normals = ((0.0, 1.0), (0.95105652, 0.30901699), (0.58778525, -0.80901699),
               (-0.58778525, -0.80901699), (-0.95105652, 0.30901699))  # fmt: skip
    return np.sort(np.stack([a * x + b * y for a, b in normals]), axis=0)[-2] - 0.4


EDGES: dict[str, Callable[[Floats, Floats], Floats]] = {
    "circle": _circle, "square": _square, "triangle": _triangle, "cross": _cross, "star": _star, "ring": _ring,
}  # fmt: skip


def _paint(canvas: Floats, thing: Thing, colour: Colour, rng: Random) -> None:
    """Put one thing somewhere inside its place, a little turned."""
    height, width = canvas.shape[0] / 3, canvas.shape[1] / 3
    radius = min(width, height) * (SIZE[0] + (SIZE[1] - SIZE[0]) * rng.random())
    middle_x = (thing.place % 3) * width + radius + (width - 2 * radius) * rng.random()
    middle_y = (thing.place // 3) * height + radius + (height - 2 * radius) * rng.random()
    half = 0.1 * (2 * rng.random() - 1)  # tangent of half the angle: sine and cosine by division, rounded alike
    stamp(canvas, thing.shape, colour, (middle_x, middle_y), radius, half)


def stamp(
    canvas: Floats, shape: str, colour: Colour, middle: tuple[float, float], radius: float, half: float = 0.0
) -> None:
    """Put a shape on the canvas, with smooth edges; `half` is the tangent of half the angle by which it is turned."""
    (left, right), (top, low) = (
        _reach(at, radius, n) for at, n in zip(middle, (canvas.shape[1], canvas.shape[0]), strict=True)
    )
    x = (np.arange(left, right)[None, :] + 0.5 - middle[0]) / radius
    y = (np.arange(top, low)[:, None] + 0.5 - middle[1]) / radius
    cos, sin = (1 - half * half) / (1 + half * half), 2 * half / (1 + half * half)
    cover = np.clip(0.5 - radius * EDGES[shape](cos * x - sin * y, sin * x + cos * y), 0, 1)[..., None]
    canvas[top:low, left:right] += cover * (np.array(colour) - canvas[top:low, left:right])


def _reach(middle: float, radius: float, n: int) -> tuple[int, int]:
    """First and behind the last of `n` pixels that a thing may touch: a star's tips lie 1.3 radii from its middle."""
    return max(0, int(middle - 1.5 * radius)), min(n, int(middle + 1.5 * radius) + 2)
