"""Pictures of one shape as people draw them with Pillow, and any picture as a JPEG file."""

from __future__ import annotations

import io
from math import cos, pi, sin
from random import Random

from PIL import Image, ImageDraw

from .plain import PURE
from .scene import COLOURS, PLACES, SHAPES, Scene, Thing, pick

__all__ = ["as_jpeg", "one_by_pillow"]

GROUNDS = ("white", "black", "lightgrey", "grey", "beige", "navy", "pink")
SMOOTH = 4
"""Pictures that are drawn smoothly are so many times larger first."""


def one_by_pillow(number: int) -> tuple[Scene, Image.Image]:
    """One shape that Pillow draws on a plain ground, smooth or not, of any size and proportions."""
    rng = Random(f"pillow {number}")
    shape, colour, place = pick(rng, SHAPES), pick(rng, COLOURS), int(rng.random() * len(PLACES))
    fill = tuple(map(round, pick(rng, PURE[colour])))
    ground = pick(rng, [name for name in GROUNDS if name != colour and (name, colour) != ("navy", "black")])
    width = 64 + int(rng.random() * 450)
    height = int(width * (0.7 + 0.6 * rng.random()))
    scale = SMOOTH if rng.random() < 0.5 else 1
    image = Image.new("RGB", (width * scale, height * scale), ground)
    x, y = ((place % 3) + 0.5) / 3 * image.width, ((place // 3) + 0.5) / 3 * image.height
    _shape(image, shape, fill, (x, y), min(image.size) * (0.1 + 0.06 * rng.random()))
    scene = Scene((Thing(shape, colour, place),))
    return scene, image if scale == 1 else image.resize((width, height), Image.Resampling.LANCZOS)


def _shape(image: Image.Image, shape: str, fill: tuple[int, ...], middle: tuple[float, float], radius: float) -> None:
    """Put a shape on the picture by what Pillow has for it; a star's tips lie beyond the radius, as in `draw.py`."""
    pen, (x, y) = ImageDraw.Draw(image), middle

    def box(half: float, other: float) -> tuple[float, float, float, float]:
        return x - half, y - other, x + half, y + other

    if shape == "circle":
        pen.ellipse(box(radius, radius), fill=fill)
    elif shape == "ring":
        pen.ellipse(box(radius, radius), outline=fill, width=max(1, round(radius / 2)))
    elif shape == "square":
        pen.rectangle(box(radius * 0.85, radius * 0.85), fill=fill)
    elif shape == "cross":
        pen.rectangle(box(radius, radius * 0.3), fill=fill)
        pen.rectangle(box(radius * 0.3, radius), fill=fill)
    elif shape == "triangle":
        pen.polygon(
            [(x, y - radius), (x - radius * 0.87, y + radius * 0.5), (x + radius * 0.87, y + radius * 0.5)], fill=fill
        )
    else:
        tips = [(radius * 1.29 if k % 2 == 0 else radius * 0.49, (k * 36 - 90) * pi / 180) for k in range(10)]
        pen.polygon([(x + r * cos(turn), y + r * sin(turn)) for r, turn in tips], fill=fill)


def as_jpeg(image: Image.Image, quality: int = 75) -> Image.Image:
    """The picture behind a JPEG file."""
    file = io.BytesIO()
    image.save(file, "JPEG", quality=quality)
    return Image.open(file)
