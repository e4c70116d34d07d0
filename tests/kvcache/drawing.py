"""Cell tables as text: "a0 ab1 ." is position 0 of sequence a, position 1 shared by a and b, and a free cell."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.cells import Cells


def ints(values: Iterable[int]) -> Int32Array:
    return np.fromiter(values, dtype=np.int32)


def place(word: str) -> tuple[list[int], int]:
    """ "ab1" -> ([0, 1], 1): sequences and position."""
    letters = word.rstrip("0123456789")
    return [ord(letter) - ord("a") for letter in letters], int(word[len(letters) :])


def table(drawn: str, **limits: Any) -> Cells:
    """The drawn table. `limits` as of `Cells`."""
    words = drawn.split() if " " in drawn else list(drawn)
    return table_of([([], -1) if word == "." else place(word) for word in words], **limits)


def table_of(placed: list[tuple[list[int], int]], **limits: Any) -> Cells:
    """A table whose cells have these sequences and positions, as steps and shares would make it.

    What a sequence shares with those of lower number it shares with one of them.
    """
    cells = Cells(len(placed), **limits)
    held: dict[int, dict[int, int]] = {}
    for cell, (sequences, position) in enumerate(placed):
        for sequence in sequences:
            held.setdefault(sequence, {})[position] = cell
    for sequence in sorted(held):
        _give(cells, sequence, held)
    return cells


def _give(cells: Cells, sequence: int, held: dict[int, dict[int, int]]) -> None:
    mine = held[sequence]
    shared = {p: cell for p, cell in mine.items() if any(held[s].get(p) == cell for s in held if s < sequence)}
    if shared:
        source = next(s for s in held if s < sequence and shared.items() <= held[s].items())
        cells.share(source, sequence, max(shared) + 1)
        for position in [p for p in held[source] if p not in shared]:
            cells.remove(sequence, position, position + 1)
    new = {p: cell for p, cell in mine.items() if p not in shared}
    cells.place(ints(new.values()), ints(new), ints([sequence] * len(new)))


def draw(cells: Cells) -> str:
    letters = [""] * len(cells)
    for sequence in range(26):
        for cell in cells.of(sequence)[0]:
            letters[cell] += chr(ord("a") + sequence)
    return " ".join(f"{who}{p}" if who else "." for who, p in zip(letters, cells.positions, strict=True))


def last_position(cells: Cells, sequence: int) -> int:
    """-1 where it has none."""
    return int(cells.of(sequence)[1].max(initial=-1))
