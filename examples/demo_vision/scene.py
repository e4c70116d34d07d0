"""What a picture shows: one to four coloured shapes on a grid of nine places.

Everything comes from `random.Random(seed).random()`, the one method whose numbers Python promises to keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

__all__ = ["COLOURS", "PLACES", "SHAPES", "Scene", "Thing", "draw_scene", "held_out", "pick"]

T = TypeVar("T")

SHAPES = ("circle", "square", "triangle", "cross", "star", "ring")
COLOURS = ("red", "orange", "yellow", "green", "blue", "purple", "white", "black")
PLACES = (
    "at the top left", "at the top", "at the top right",
    "on the left", "in the middle", "on the right",
    "at the bottom left", "at the bottom", "at the bottom right",
)  # fmt: skip
"""Row by row; an index into this is a place."""
MOST_THINGS = 4
REPEATED = 0.3
"""How often a thing takes the shape of the one before, so that there is something to count."""


@dataclass(frozen=True)
class Thing:
    """One shape; `place` is an index into PLACES."""

    shape: str
    colour: str
    place: int


@dataclass(frozen=True)
class Scene:
    """Things in reading order, each in a place of its own."""

    things: tuple[Thing, ...]


def pick(rng: Random, values: Sequence[T]) -> T:
    """One of the values. `Random.choice` may change from one Python to the next."""
    return values[int(rng.random() * len(values))]


def held_out(thing: Thing) -> bool:
    """Whether no training picture has this shape in this colour in this place: one in eleven."""
    return (5 * SHAPES.index(thing.shape) + 3 * COLOURS.index(thing.colour) + 7 * thing.place) % 11 == 0


def draw_scene(rng: Random, *, training: bool, crowded: bool = False) -> Scene:
    """A random scene; in training none with a thing that is held out. Crowded ones have more things to learn from."""
    while True:
        scene = _any_scene(rng, 4 + int(rng.random() * 6) if crowded else 1 + int(rng.random() * MOST_THINGS))
        if not (training and any(map(held_out, scene.things))):
            return scene


def _any_scene(rng: Random, n: int) -> Scene:
    free, things, shape = list(range(len(PLACES))), [], ""
    for _ in range(n):
        place = free.pop(int(rng.random() * len(free)))
        if not shape or rng.random() >= REPEATED:
            shape = pick(rng, SHAPES)
        things.append(Thing(shape, pick(rng, COLOURS), place))
    return Scene(tuple(sorted(things, key=lambda thing: thing.place)))
