"""The pictures that the finished model is judged by, with two questions each. Numpy and Pillow suffice to draw them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from random import Random

from PIL import Image

from .draw import picture
from .plain import alone
from .questions import DESCRIBE, ask, describe
from .scene import Scene

__all__ = ["HELD_OUT", "Asked", "digest", "pictures", "questions"]

HELD_OUT = {"several": 500, "alone": 300}
"""Pictures of one to four things on any background, and of one thing alone on a plain ground.

Numbers of these pictures begin with 0; training pictures have numbers from ten million on.
"""
DRAWN_BY = {"several": picture, "alone": alone}


@dataclass(frozen=True)
class Asked:
    """A question and its right answer."""

    question: str
    answer: str


def pictures(kind: str, n: int) -> Iterator[tuple[Scene, Image.Image]]:
    """The first `n` of a kind, as RGB pictures."""
    for number in range(n):
        scene, pixels = DRAWN_BY[kind](number)
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
