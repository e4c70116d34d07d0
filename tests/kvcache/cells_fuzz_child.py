"""Calls every method of `Cells` with random arguments, most of them wrong: `python -m ... SEED CALLS`.

Nothing but Python's own kinds of refusal may come of it, and the table stays consistent.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ollama_engine.kvcache.cells import Cells, Moves

REFUSALS = (TypeError, ValueError, OverflowError)
EDGES = [-(2**70), -(2**31) - 1, -1, 0, 1, 2, 5, 63, 64, 69, 70, 2**31 - 1, 2**31, 2**63, 2**70]
ODD = [None, 1.5, float("nan"), "7", b"1234", [], [1], (1, 2), np.int8(2)]
TYPES = [np.int32] * 60 + [np.int64, np.uint32, np.float16, np.uint64, np.int8, bool]


def number(rng: random.Random) -> Any:
    return rng.choice(ODD) if rng.random() < 0.05 else rng.choice(EDGES) if rng.random() < 0.3 else rng.randrange(80)


def array(rng: random.Random, n: int, end: int = 70, dtype: Any = None) -> Any:
    """Mostly int32 of the right length with numbers in range."""
    if rng.random() < 0.03:
        return rng.choice(ODD)
    if rng.random() < 0.1:
        n = rng.randrange(100)
    values = [rng.randrange(end) for _ in range(n)]
    if n and rng.random() < 0.15:
        values[rng.randrange(n)] = rng.choice([-1, -(2**31), 64, 70, 71, 2**31 - 1])
    with np.errstate(over="ignore"):
        made = np.array(values, dtype=np.int64).astype(dtype or rng.choice(TYPES))
    if rng.random() < 0.05:
        made = rng.choice([made[::2], made[None], made[::-1], np.asfortranarray(np.stack([made, made]))])
    return made


def mask(rng: random.Random, n: int) -> Any:
    shape = (n if rng.random() < 0.9 else rng.randrange(5), rng.choice([0, 1, 20, 70, 71, 1000]))
    made = np.zeros(shape, dtype=np.float16 if rng.random() < 0.9 else rng.choice(TYPES))
    if rng.random() < 0.1:
        made = rng.choice([made.T, made[:, ::2], made.ravel(), made[..., None], None])
    return made


def moves(rng: random.Random) -> Any:
    n = rng.randrange(6)
    made = [Moves(array(rng, n), array(rng, n)), (array(rng, n),), None, (1, 2, 3)]
    return rng.choices(made, [10, 1, 1, 1])[0]


def rows(rng: random.Random, n: int | None = None) -> tuple[Any, Any]:
    n = rng.randrange(9) if n is None else n
    return array(rng, n, 200), array(rng, n, 64)


def take(rng: random.Random, cells: Cells) -> None:
    """As a step does, with positions that a sequence may have already."""
    batch = rows(rng)
    found = cells.find_places(*batch)
    if found is not None:
        cells.place(found, *batch)


def shift(rng: random.Random, cells: Cells) -> None:
    how = rng.randrange(64), rng.randrange(9), rng.randrange(1, 9)
    plan = cells.shift_plan(*how)
    cells.shift(*(how if rng.random() < 0.8 else (number(rng),) * 3), plan if rng.random() < 0.8 else moves(rng))


def fill(rng: random.Random, cells: Cells) -> None:
    n = rng.randrange(4)
    cells.fill_mask(number(rng), array(rng, n, 64), array(rng, n), array(rng, n), mask(rng, n))


def list_indices(rng: random.Random, cells: Cells) -> None:
    n = rng.randrange(4)
    given = array(rng, n, 64)
    ranges = np.zeros((n if rng.random() < 0.9 else rng.randrange(5), 2), dtype=rng.choice(TYPES))
    room = cells.n_indices(given) if rng.random() < 0.8 else rng.randrange(80)
    cells.fill_indices(given, array(rng, n), array(rng, n), ranges, array(rng, room))


def make(rng: random.Random, cells: Cells) -> None:
    limit = {rng.choice(["window", "chunk", "memory", "other"]): number(rng)}
    Cells(rng.choice([number(rng), 2**24 + 1]), **limit)


CALLS: dict[str, Callable[[random.Random, Cells], Any]] = {
    "room": lambda r, c: c.room(array(r, r.randrange(5), 64)),
    "room_for": lambda r, c: c.room_for(*rows(r)),
    "slide": lambda r, c: c.slide(*rows(r)),
    "usage": lambda r, c: c.usage(),
    "span": lambda r, c: c.span(array(r, r.randrange(9), 64)),
    "of": lambda r, c: c.of(number(r), *r.choice([(), (number(r),), (number(r), number(r))])),
    "has_all": lambda r, c: c.has_all(number(r), number(r), number(r)),
    "fill_mask": fill,
    "fill_indices": list_indices,
    "find_places": lambda r, c: c.find_places(*rows(r)),
    "place": lambda r, c: c.place(array(r, 3), *rows(r, 3)),
    "take": take,
    "share": lambda r, c: c.share(number(r), number(r), number(r)),
    "remove": lambda r, c: c.remove(number(r), number(r), number(r)),
    "can_shift": lambda r, c: c.can_shift(number(r), number(r), number(r), array(r, r.randrange(5), 64)),
    "shift_plan": lambda r, c: c.shift_plan(number(r), number(r), number(r)),
    "shift": shift,
    "pack_plan": lambda r, c: c.pack_plan(number(r), number(r), number(r)),
    "pack": lambda r, c: c.pack(number(r), number(r), number(r)),
    "make": make,
}


def fresh(rng: random.Random) -> Cells:
    return Cells(70, window=rng.choice([None, 7]))


def main(seed: int, calls: int) -> None:
    rng = random.Random(seed)
    cells, done, refused = fresh(rng), 0, 0
    for _ in range(calls):
        name = rng.choice(list(CALLS))
        try:
            CALLS[name](rng, cells)
            done += 1
        except REFUSALS:
            refused += 1
        if cells.n_free == 0 or rng.random() < 0.01:
            cells.check()
            cells = fresh(rng)
    cells.check()
    assert min(done, refused) > calls // 20, "both happen"


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
