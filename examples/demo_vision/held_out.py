"""The pictures that the finished model is judged by, with two questions each. Numpy and Pillow suffice to draw them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from PIL import Image

from .draw import picture
from .questions import DESCRIBE, ask, describe
from .scene import Scene

__all__ = ["HELD_OUT", "Asked", "digest", "pictures", "questions"]

HELD_OUT = 500
"""Numbers of these pictures are 0 to 499; training pictures have numbers from ten million on."""


@dataclass(frozen=True)
class Asked:
    """A question and its right answer."""

    question: str
    answer: str


def pictures(n: int) -> Iterator[tuple[Scene, Image.Image]]:
    """The first `n` of them, as RGB pictures."""
    for number in range(n):
        scene, pixels = picture(number)
        yield scene, Image.fromarray(pixels)


def questions(scene: Scene, number: int) -> tuple[Asked, Asked]:
    """What is asked about picture `number`: to describe it, and something else."""
    rng = Random(5_000_000 + number)
    question, answer = ask(scene, rng)
    while question in DESCRIBE:
        question, answer = ask(scene, rng)
    return Asked(DESCRIBE[0], describe(scene)), Asked(question, answer)


def digest(images: Iterable[Image.Image]) -> str:
    """SHA-256 of the pictures' sizes and pixels."""
    found = hashlib.sha256()
    for image in images:
        found.update(repr(image.size).encode() + image.tobytes())
    return found.hexdigest()
