"""Cell tables as text: "a0 ab1 ." is position 0 of sequence a, position 1 shared by a and b, and a free cell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.cells import MAX_SEQUENCES, Cells


def ints(values: Iterable[int]) -> Int32Array:
    return np.fromiter(values, dtype=np.int32)


def place(word: str) -> tuple[list[int], int]:
    """ "ab1" -> ([0, 1], 1): sequences and position."""
    letters = word.rstrip("0123456789")
    return [ord(letter) - ord("a") for letter in letters], int(word[len(letters) :])


def table(drawn: str) -> Cells:
    """The drawn table."""
    words = drawn.split() if " " in drawn else list(drawn)
    placed = [([], -1) if word == "." else place(word) for word in words]
    owners = [sum(1 << sequence for sequence in sequences) for sequences, _ in placed]
    return Cells.from_table(ints(position for _, position in placed), np.array(owners, dtype=np.uint64))


def ends(drops: dict[int, int]) -> NDArray[np.int64]:
    """{sequence: end} as an array for all sequences."""
    out = np.zeros(MAX_SEQUENCES, dtype=np.int64)
    for sequence, end in drops.items():
        out[sequence] = end
    return out


def draw(cells: Cells) -> str:
    words = []
    for position, owners in zip(cells.positions, cells.owners, strict=True):
        letters = "".join(chr(ord("a") + s) for s in range(26) if int(owners) >> s & 1)
        words.append(f"{letters}{position}" if letters else ".")
    return " ".join(words)
