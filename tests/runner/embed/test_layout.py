"""Where texts lie in a batch."""

from __future__ import annotations

import random

import numpy as np
import pytest

from ollama_engine.kvcache.null import part_of
from ollama_engine.runner.embed.layout import SPARE, batch_of, places
from ollama_engine.runner.embed.tokenized_text import TokenizedText


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [([16] * 32, 512), ([128] * 4, 512), ([64] * 3, 192), ([40, 24, 30, 30], 128),
     ([40, 40, 40, 40], 160), ([300], 300), ([128, 100, 28], 256)],
)  # fmt: skip
def test_rows(lengths: list[int], rows: int) -> None:
    assert places(lengths, 512).n_rows == rows


def test_every_text_has_its_rows_and_few_are_left_over() -> None:
    dice = random.Random(5)
    for _ in range(300):
        limit = dice.choice((64, 256, 512))
        lengths: list[int] = []
        while len(lengths) < 64 and sum(lengths) + (n := dice.choice((1, 7, 16, 33, 60, 100))) <= limit:
            lengths.append(n)
        if not lengths:
            continue
        where = places(lengths, limit)
        assert sorted(where.order) == list(range(len(lengths)))
        assert where.n_rows <= min(limit, sum(lengths) * (1 + 1 / SPARE))
        ends = [begin + lengths[number] for number, begin in zip(where.order, where.begins, strict=True)]
        assert all(end <= begin for end, begin in zip(ends, where.begins[1:], strict=False))
        assert ends[-1] <= where.n_rows


def test_parts_that_have_rows_left_over_see_nothing_of_each_other() -> None:
    dice = random.Random(6)
    in_parts = 0
    for low, high, limit in [(60, 64, 512), (30, 32, 512), (8, 40, 512), (60, 64, 4096), (120, 128, 4096)]:
        for _ in range(20):
            lengths = [dice.randint(low, high) for _ in range(min(64, limit // high))]
            texts = [TokenizedText(np.arange(n, dtype=np.int32), "mean", n) for n in lengths]
            where = places(lengths, limit)
            assert part_of(batch_of(texts, ["mean"] * len(texts), where)) == where.part
            in_parts += where.part < where.n_rows
    assert in_parts > 70


def test_batch() -> None:
    texts = [
        TokenizedText(np.arange(10, 10 + n, dtype=np.int32), "mean", n, 5 if n == 24 else None)
        for n in (40, 36, 24, 28)
    ]
    where = places([40, 36, 24, 28], 128)
    batch = batch_of(texts, ["mean", "cls", "last", "none"], where)
    assert where.order == [0, 2, 1, 3]
    assert batch.sequences.tolist() == [0] * 40 + [2] * 24 + [1] * 36 + [3] * 28
    assert batch.positions.tolist() == [*range(40), *range(24), *range(36), *range(28)]
    assert batch.outputs.tolist() == [*range(40), 63, 64, *range(100, 128)]
    assert batch.types is not None
    assert np.flatnonzero(batch.types).tolist() == list(range(45, 64))
