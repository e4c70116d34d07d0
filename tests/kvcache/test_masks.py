"""Masks, drawn: one line for each row of the batch, 0 where it sees the cell and x where not."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from ollama_engine.input import Batch
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.mask import MaskBuffer
from ollama_engine.kvcache.span import CellSpan
from ollama_engine.kvcache.visibility import Visibility
from tests.kvcache.cells_twin import CellsTwin, kept_from
from tests.kvcache.drawing import ints, place, table, table_of


class Case(NamedTuple):
    name: str
    cells: str
    rows: str
    mask: str
    window: int | None = None
    chunk: int | None = None


CASES = [
    Case("first batch", "a0 a1 a2", "a0 a1 a2", "0xx/00x/000"),
    Case("one more token", "a0 a1 a2 a3", "a3", "0000"),
    Case("free cells are hidden", "a0 . a1 .", "a0 a1", "0xxx/0x0x"),
    Case("cells in any order", "a2 a0 a1", "a0 a1 a2", "x0x/x00/000"),
    Case("two sequences", "a0 b0 a1 b1", "a1 b1", "0x0x/x0x0"),
    Case("two sequences, one batch", "a0 a1 b0 b1", "a0 a1 b0 b1", "0xxx/00xx/xx0x/xx00"),
    Case("a sequence without cells", "a0 a1", "b0", "xx"),
    Case("shared prefix", "ab0 ab1 a2 b2", "a2 b2", "000x/00x0"),
    Case("an earlier row does not see the shared rest", "ab0 ab1 a2", "b0", "0xx"),
    Case("a gap in the positions", "a0 a5 a9", "a5 a7", "00x/00x"),
    Case("window of 1 is the token itself", "a0 a1 a2", "a0 a1 a2", "0xx/x0x/xx0", window=1),
    Case("window of 2", "a0 a1 a2 a3", "a0 a1 a2 a3", "0xxx/00xx/x00x/xx00", window=2),
    Case("window longer than the text", "a0 a1 a2", "a0 a1 a2", "0xx/00x/000", window=9),
    Case("window of two sequences", "a3 a4 a5 b0 b1", "a5 b1", "x00xx/xxx00", window=2),
    Case("window over shared cells", "ab0 ab1 ab2 a3", "a3 b3", "xx00/xx0x", window=2),
    Case("largest window", "a0 a1", "a1", "00", window=2**31 - 1),
    Case("window beyond 32 bits", "a0 a1", "a1", "00", window=2**40),
    Case("chunk of 1 is the token itself", "a0 a1 a2", "a0 a1 a2", "0xx/x0x/xx0", chunk=1),
    Case("chunk of 2", "a0 a1 a2 a3", "a0 a1 a2 a3", "0xxx/00xx/xx0x/xx00", chunk=2),
    Case("chunk of 3, from its middle", "a2 a3 a4 a5 a6", "a4 a5 a6", "x00xx/x000x/xxxx0", chunk=3),
    Case("chunk longer than the text", "a0 a1 a2", "a0 a1 a2", "0xx/00x/000", chunk=9),
    Case("chunks of two sequences", "a3 a4 b4 b5", "a4 b5", "x0xx/xx00", chunk=4),
    Case("chunk over shared cells", "ab0 ab1 ab2 a3", "a3 b2", "xx00/xx0x", chunk=2),
]


def shown(cells: Cells, sequences: Any, first: Any, last: Any, begin: int = 0, end: int | None = None) -> str:
    span = CellSpan(begin, len(cells) if end is None else end)
    mask = MaskBuffer().fill(cells, span, sequences, first, last)
    assert set(mask.ravel().tolist()) <= {0.0, -np.inf}
    return "/".join("".join("0" if cell == 0 else "x" for cell in row) for row in mask)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_mask(case: Case) -> None:
    rows = [place(word) for word in case.rows.split()]
    cells = table(case.cells)
    positions, sequences = ints(p for _, p in rows), ints(s[0] for s, _ in rows)
    first = Visibility(window=case.window, chunk=case.chunk).first(positions)
    assert shown(cells, sequences, first, positions) == case.mask
    for begin in range(len(cells)):
        for end in range(begin, len(cells) + 1):
            part = "/".join(row[begin:end] for row in case.mask.split("/"))
            assert shown(cells, sequences, first, positions, begin, end) == part


@pytest.mark.parametrize(
    ("rows", "blocks", "mask"),
    [
        ("a0 a1 a2 a3", [-1, 7, 7, -1], "0xxx/000x/000x/0000"),
        ("a0 a1 a2 a3", [0, 0, 1, 1], "00xx/00xx/0000/0000"),
        ("a0 a1 b0 b1", [3, 3, 3, 3], "00xx/00xx/xx00/xx00"),
        ("a0 b0 a1 b1", [-1, 3, -1, 3], "0xxx/x0x0/0x0x/x0x0"),
    ],
)
def test_tokens_of_one_block_see_each_other(rows: str, blocks: list[int], mask: str) -> None:
    cells = table(rows)
    places = [place(word) for word in rows.split()]
    positions, sequences = ints(p for _, p in places), ints(s[0] for s, _ in places)
    batch = Batch(positions, positions, sequences, ints([0]), blocks=ints(blocks))
    assert shown(cells, sequences, Visibility().first(positions), Visibility().last(batch)) == mask


def test_a_block_that_a_window_cuts() -> None:
    """The window holds for how far back a row sees, the block for how far ahead."""
    cells = table("a0 a1 a2 a3")
    positions = ints(range(4))
    batch = Batch(positions, positions, ints([0] * 4), ints([0]), blocks=ints([-1, 5, 5, 5]))
    first = Visibility(window=2).first(positions)
    assert shown(cells, batch.sequences, first, Visibility().last(batch)) == "0xxx/0000/x000/xx00"


@pytest.mark.parametrize("limits", [{}, {"window": 37}, {"chunk": 50}])
def test_a_long_table_of_two_sequences_beside_the_twin(limits: dict[str, int]) -> None:
    """Words of cells that are full, empty and mixed, and runs that begin and end within one."""
    n = 700
    rng = np.random.default_rng(0)
    owners = np.repeat(rng.choice([0, 1, 2, 3], 20), 35)
    owners[300:500] = rng.choice([0, 1, 2, 3], 200)
    positions = np.where(owners > 0, rng.permutation(n), -1).astype(np.int32)
    held = [[sequence for sequence in (0, 1) if who >> sequence & 1] for who in owners.tolist()]
    cells, twin = table_of(list(zip(held, positions.tolist(), strict=True))), CellsTwin(n)
    twin._of(5)
    twin.positions = positions
    twin.owners[0], twin.owners[1] = owners & 1, owners & 2
    last = ints([n, 0, 300, 301, 302, 650, n, 2**31 - 1])
    first = Visibility(**limits).first(last)
    sequences = ints([0, 1, 1, 1, 0, 0, 1, 5])
    for begin, end in ((0, n), (64, 640), (1, 2), (63, 65), (299, 700), (130, 131), (200, 200)):
        mask = MaskBuffer().fill(cells, CellSpan(begin, end), sequences, first, last)
        assert ((mask == 0) == twin.visible(begin, end, sequences, first, last)).all()


def test_a_buffer_is_taken_once() -> None:
    masks, cells = MaskBuffer(), table("a0 a1 . .")
    masks.reserve(2, 4)
    rows = ints([0, 0]), ints([0, 0]), ints([0, 1])
    large = masks.fill(cells, CellSpan(0, 4), *rows)
    small = masks.fill(cells, CellSpan(0, 2), *rows)
    assert np.shares_memory(large, small)
    assert small.flags.c_contiguous


@pytest.mark.parametrize("memory", [0, 3, 2**70])
@pytest.mark.parametrize(
    "limits", [{}, {"window": 1}, {"window": 5}, {"window": 2**70}, {"chunk": 4}, {"chunk": 2**70}]
)
def test_what_is_kept_is_what_the_earliest_to_resume_would_see(limits: dict[str, int], memory: int) -> None:
    policy = Visibility(**limits)
    reach = limits.get("window"), limits.get("chunk"), memory
    for position in range(20):
        kept = policy.first_of(max(0, position - memory))
        assert kept == kept_from(position, *reach)
        cells = Cells(20, memory=memory, **limits)  # type: ignore[arg-type]
        cells.place(ints(range(20)), ints(range(20)), ints([0] * 20))
        cells.remove(0, position)
        cells.slide(ints([position]), ints([0]))
        assert cells.of(0)[1].tolist() == list(range(kept, position))
