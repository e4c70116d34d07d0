"""Cell tables as text: "a0 ab1 ." is position 0 of sequence a, position 1 shared by a and b, and a free cell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.cells import Cells


def ints(values: Iterable[int]) -> Int32Array:
    return np.fromiter(values, dtype=np.int32)


def place(word: str) -> tuple[list[int], int]:
    """ "ab1" -> ([0, 1], 1): sequences and position."""
    letters = word.rstrip("0123456789")
    return [ord(letter) - ord("a") for letter in letters], int(word[len(letters) :])


def table(drawn: str) -> Cells:
    """The drawn table, made with `place` and `share`-like changes of one cell at a time."""
    words = drawn.split() if " " in drawn else list(drawn)
    cells = Cells(len(words))
    for i, word in enumerate(words):
        if word != ".":
            (first, *others), position = place(word)
            cells.place(ints([i]), ints([position]), ints([first]))
            for other in others:
                cells.owners[i] |= np.uint64(1 << other)
    return cells


def draw(cells: Cells) -> str:
    words = []
    for position, owners in zip(cells.positions, cells.owners, strict=True):
        letters = "".join(chr(ord("a") + s) for s in range(26) if int(owners) >> s & 1)
        words.append(f"{letters}{position}" if letters else ".")
    return " ".join(words)
