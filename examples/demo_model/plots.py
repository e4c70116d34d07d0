"""What a plot is, and the passages that all plots share; both are read from `data/`."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from pathlib import Path

from .texts import FOLDER, Block, columns, lines, read_sections, words
from .world import POCKET_THINGS

BREAK: Block = ("¶",)
"""Where a new paragraph may begin."""

Question = tuple[str, ...]
"""A question and its answer."""


@dataclass(frozen=True)
class Plot:
    """A story's course: for each step the sentences of which one is drawn. Slots: see `stories.slots_for`.

    `summary` follows "a story about a fox who". `details` gives extra slots, one set per story; `things` limits what
    the story may be about (empty: anything that is no food), `not_traits` what its hero may be like.
    """

    name: str
    summary: str
    moral: str
    beats: tuple[Block, ...]
    questions: tuple[Question, ...]
    details: tuple[dict[str, str], ...]
    things: tuple[str, ...]
    not_traits: tuple[str, ...]


@dataclass(frozen=True)
class Passages:
    """Steps that every story has; `day` opens its first event, `later` does so where the opening named a day."""

    openings: tuple[Block, ...]
    character: Block
    interludes: Block
    endings: Block
    morals: Block
    questions: tuple[Question, ...]
    day: str
    later: str


def read_plot(path: Path) -> Plot:
    """Read one file of `data/plots/`; its name is `NN_name.txt`."""
    sections = read_sections(path)
    things = words(sections, "things")
    return Plot(
        name=path.stem.partition("_")[2],
        summary=lines(sections, "summary")[0],
        moral=lines(sections, "moral")[0],
        beats=tuple(BREAK if block == BREAK else block for block in sections["beats"]),
        questions=tuple(columns(line) for line in lines(sections, "questions")),
        details=_details(sections.get("details", ())),
        things=tuple(thing for word in things for thing in (POCKET_THINGS if word == "@pocket" else (word,))),
        not_traits=words(sections, "not traits"),
    )


def _details(blocks: tuple[Block, ...]) -> tuple[dict[str, str], ...]:
    """Every combination of one line of each block; a line reads `slot: value; slot: value`."""
    combinations = product(*([_slots(line) for line in block] for block in blocks))
    return tuple({slot: value for part in parts for slot, value in part.items()} for parts in combinations)


def _slots(line: str) -> dict[str, str]:
    return {slot: value for slot, _, value in (pair.partition(": ") for pair in line.split("; "))}


def read_passages(path: Path) -> Passages:
    """Read `data/passages.txt`."""
    sections = read_sections(path)
    day, later = lines(sections, "days")
    return Passages(
        openings=sections["openings"],
        character=lines(sections, "character"),
        interludes=lines(sections, "interludes"),
        endings=lines(sections, "endings"),
        morals=lines(sections, "morals"),
        questions=tuple(columns(line) for line in lines(sections, "questions")),
        day=day,
        later=later,
    )


PLOTS = tuple(read_plot(path) for path in sorted((FOLDER / "plots").glob("*.txt")))
PASSAGES = read_passages(FOLDER / "passages.txt")
