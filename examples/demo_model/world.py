"""What the stories are made of: characters, things and places, read from `data/`, and the draw of a character."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from random import Random

from .texts import FOLDER, Block, columns, lines, read_sections, words

HELD_OUT_SHARE = 16
"""One (hero, thing) pair in this many is kept out of the training stories, to measure on."""

_WORDS = read_sections(FOLDER / "words.txt")

GIRLS = words(_WORDS, "girls")
BOYS = words(_WORDS, "boys")
PETS_HE = words(_WORDS, "pets he")
PETS_SHE = words(_WORDS, "pets she")
ANIMALS_HE = words(_WORDS, "animals he")
ANIMALS_SHE = words(_WORDS, "animals she")
ANIMALS = (*ANIMALS_HE, *ANIMALS_SHE)
WOMEN = (*words(_WORDS, "women"), *words(_WORDS, "workers she"))
MEN = (*words(_WORDS, "men"), *words(_WORDS, "workers he"))
CHILDREN = words(_WORDS, "children")
PEOPLE = (*WOMEN, *MEN, *CHILDREN)
SHE = frozenset((*ANIMALS_SHE, *WOMEN))
TRAITS = words(_WORDS, "traits")
SMALL = words(_WORDS, "small")
GROWN = words(_WORDS, "grown")
SAD = words(_WORDS, "sad")
JOY = words(_WORDS, "joy")
HOUSES = lines(_WORDS, "houses")
DENS = lines(_WORDS, "dens")
FOODS = words(_WORDS, "foods")
POCKET_THINGS = words(_WORDS, "pocket")


@dataclass(frozen=True)
class Thing:
    """What a story is about: the noun, its adjectives, and what it did, to follow "it"."""

    noun: str
    adjectives: tuple[str, ...]
    why: str


@dataclass(frozen=True)
class Place:
    """Somewhere to go: the noun with its preposition, what it looked like, and spots where things can lie."""

    noun: str
    at: str
    scenes: str
    spots: tuple[str, ...]


def _thing(line: str) -> Thing:
    noun, adjectives, why = columns(line)
    return Thing(noun, tuple(adjectives.split()), why)


def _place(block: Block) -> Place:
    head, scenes, *spots = block
    at, noun = columns(head)
    return Place(noun, at, scenes, tuple(spots))


THINGS = {thing.noun: thing for thing in map(_thing, lines(read_sections(FOLDER / "things.txt"), "things"))}
PLACES = tuple(map(_place, read_sections(FOLDER / "places.txt")["places"]))


PRONOUNS = ("he", "him", "his", "himself", "she", "her", "herself")

WHO_AND_WHAT = (
    *(*GIRLS, *BOYS, *PETS_HE, *PETS_SHE),
    *(*ANIMALS, *PEOPLE, *TRAITS, *PRONOUNS, *map(str.capitalize, PRONOUNS)),
    *THINGS,
    *(place.noun for place in PLACES),
)
"""The words that say who and what a story is about."""


@dataclass(frozen=True)
class Character:
    """Someone in a story: `call` is how the story speaks of them, `phrase` how it brings them in."""

    kind: str
    call: str
    phrase: str
    trait: str
    female: bool
    home: str

    @property
    def pronouns(self) -> tuple[str, str, str, str]:
        """Subject, object, possessive and reflexive."""
        return ("she", "her", "her", "herself") if self.female else ("he", "him", "his", "himself")

    @property
    def named(self) -> bool:
        """Whether `call` is a name rather than "the fox"."""
        return self.call[0].isupper()


def draw_character(rng: Random, *, apart_from: Character | None = None) -> Character:
    """Draw someone; another pronoun than that of `apart_from`, so that "he" and "she" are never in doubt."""
    while True:
        who = _any_character(rng)
        if apart_from is None or who.female != apart_from.female:
            return who


def _any_character(rng: Random) -> Character:
    animal = rng.random() < 0.6
    kind = rng.choice(ANIMALS if animal else PEOPLE)
    female = kind in SHE
    names = (PETS_SHE if female else PETS_HE) if animal else (GIRLS if female else BOYS)
    size = rng.choice(SMALL if animal or kind in CHILDREN else GROWN)
    trait = rng.choice(TRAITS)
    home = rng.choice(DENS if animal and kind != "robot" else HOUSES)
    if rng.random() < 0.85:
        name = rng.choice(names)
        return Character(kind, name, f"a {size} {kind} named {name}", trait, female, home)
    return Character(kind, f"the {kind}", f"a {size} {kind}", trait, female, home)


def held_out(kind: str, thing: str) -> bool:
    """Whether stories about this hero and this thing are kept for measuring, never trained on."""
    return zlib.crc32(f"{kind}+{thing}".encode()) % HELD_OUT_SHARE == 0
