"""Questions about a scene, with their answers."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from .scene import COLOURS, PLACES, SHAPES, Scene, Thing, pick

__all__ = ["DESCRIBE", "PLURALS", "ask", "describe", "named"]

DESCRIBE = (
    "What is in the picture?",
    "What is in this picture?",
    "What is in the image?",
    "What is in this image?",
    "What do you see?",
    "Describe the picture.",
    "Describe this image.",
)
NUMBERS = ("none", "one", "two", "three", "four")
PLURALS = {shape: shape + ("es" if shape.endswith("s") else "s") for shape in SHAPES}
SEVERAL = (("How many ", " are there?"), ("How many ", " do you see?"), ("How many ", " are in the picture?"))


def named(thing: Thing) -> str:
    """Such as "an orange star"."""
    return f"a{'n' if thing.colour[0] in 'aeiou' else ''} {thing.colour} {thing.shape}"


def describe(scene: Scene) -> str:
    """Every thing with its colour and place: "a red circle at the top left and a blue square in the middle"."""
    return _listed([f"{named(thing)} {PLACES[thing.place]}" for thing in scene.things])


def _listed(texts: list[str]) -> str:
    """Such as "a, b and c"; empty for none."""
    return " and ".join(text for text in (", ".join(texts[:-1]), *texts[-1:]) if text)


def ask(scene: Scene, rng: Random) -> tuple[str, str]:
    """A random question and its answer."""
    return pick(rng, KINDS)(scene, rng)


def _description(scene: Scene, rng: Random) -> tuple[str, str]:
    return pick(rng, DESCRIBE), describe(scene)


def _count(scene: Scene, rng: Random) -> tuple[str, str]:
    shape = _shape(scene, rng)
    before, behind = pick(rng, SEVERAL)
    return before + PLURALS[shape] + behind, NUMBERS[sum(thing.shape == shape for thing in scene.things)]


def _count_all(scene: Scene, rng: Random) -> tuple[str, str]:
    before, behind = pick(rng, SEVERAL)
    return before + pick(rng, ("things", "shapes")) + behind, NUMBERS[len(scene.things)]


def _colour(scene: Scene, rng: Random) -> tuple[str, str]:
    shape, word = _shape(scene, rng), pick(rng, ("colour", "color"))
    colours = [thing.colour for thing in scene.things if thing.shape == shape]
    question = f"What {word} are the {PLURALS[shape]}?" if len(colours) > 1 else f"What {word} is the {shape}?"
    return question, _listed(colours) or f"there is no {shape}"


def _at(scene: Scene, rng: Random) -> tuple[str, str]:
    taken = {thing.place: named(thing) for thing in scene.things}
    place = pick(rng, sorted(taken)) if rng.random() < 0.7 else int(rng.random() * len(PLACES))
    return f"What is {PLACES[place]}?", taken.get(place, "nothing")


def _where(scene: Scene, rng: Random) -> tuple[str, str]:
    thing = _thing(scene, rng)
    name = f"{thing.colour} {thing.shape}"
    places = [PLACES[other.place] for other in scene.things if _alike(other, thing)]
    return f"Where is the {name}?", _listed(places) or f"there is no {name}"


def _is_there(scene: Scene, rng: Random) -> tuple[str, str]:
    thing = _thing(scene, rng)
    return f"Is there {named(thing)}?", "yes" if any(_alike(other, thing) for other in scene.things) else "no"


def _alike(thing: Thing, other: Thing) -> bool:
    return (thing.shape, thing.colour) == (other.shape, other.colour)


def _shape(scene: Scene, rng: Random) -> str:
    """One of the scene's in most questions, any in others."""
    return pick(rng, scene.things).shape if rng.random() < 0.75 else pick(rng, SHAPES)


def _thing(scene: Scene, rng: Random) -> Thing:
    """One of the scene in most questions, else one that may not be there: often only its colour or shape is another."""
    thing = pick(rng, scene.things)
    chance = rng.random()
    shape = pick(rng, SHAPES) if 0.6 < chance < 0.8 else thing.shape
    colour = pick(rng, COLOURS) if chance > 0.8 else thing.colour
    return Thing(shape, colour, thing.place)


KINDS: tuple[Callable[[Scene, Random], tuple[str, str]], ...] = (
    *(_description,) * 4, _count, _count_all, _colour, _at, _where, _is_there,
)  # fmt: skip
"""Descriptions are the longest answers, and asked for more often."""
