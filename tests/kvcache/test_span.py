"""Which cells a step reads, and how often that changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.input import Int32Array
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.span import CellSpan, SpanPolicy, is_decoding
from tests.kvcache.drawing import ints

NOTHING = CellSpan(0, 0)


@pytest.mark.parametrize(
    ("needed", "n_rows", "decoding", "before", "chosen"),
    [
        ((0, 1), 1, False, (0, 0), (0, 256)),
        ((0, 256), 1, False, (0, 0), (0, 256)),
        ((0, 257), 1, False, (0, 0), (0, 512)),
        ((300, 900), 512, False, (0, 0), (256, 1024)),
        ((0, 1), 4, True, (0, 0), (0, 256)),
        ((0, 1), 5, True, (0, 0), (0, 512)),  # 64 steps of 5 cells
        ((9000, 9999), 64, True, (0, 0), (8192, 10000)),  # not beyond the cache
        # A run that serves stays while decoding, ...
        ((300, 900), 1, True, (0, 1024), (0, 1024)),
        ((600, 2000), 1, True, (0, 2048), (0, 2048)),
        # ... unless it is too long or too short, ...
        ((1500, 1600), 1, True, (0, 2048), (1280, 1792)),
        ((300, 1025), 1, True, (0, 1024), (256, 1280)),
        ((0, 900), 1, True, (256, 1024), (0, 1024)),
        # ... and prompts pay for what they read.
        ((300, 900), 512, False, (0, 1024), (256, 1024)),
    ],
)
def test_choice(
    needed: tuple[int, int], n_rows: int, decoding: bool, before: tuple[int, int], chosen: tuple[int, int]
) -> None:
    policy = SpanPolicy(10_000, 256)
    assert policy.choose(CellSpan(*needed), n_rows, decoding=decoding, before=CellSpan(*before)) == chosen


@given(
    edges=st.lists(st.tuples(st.integers(0, 4096), st.integers(0, 4096)), min_size=1, max_size=20),
    n_rows=st.integers(1, 64),
    decoding=st.booleans(),
    padding=st.sampled_from([1, 4, 32, 256]),
)
def test_what_is_needed_is_read(edges: list[tuple[int, int]], n_rows: int, decoding: bool, padding: int) -> None:
    policy, before = SpanPolicy(4096, padding), NOTHING
    for pair in edges:
        needed = CellSpan(*sorted(pair))
        before = policy.choose(needed, n_rows, decoding=decoding, before=before)
        assert 0 <= before.begin <= needed.begin <= needed.end <= before.end <= 4096
        assert before.begin % padding == before.end % padding == 0


def take(cells: Cells, positions: Int32Array, sequences: Int32Array) -> None:
    cells.slide(positions, sequences)
    found = cells.find_places(positions, sequences)
    assert found is not None
    cells.place(found, positions, sequences)


def spans(n_streams: int, limits: dict[str, int], turns: int = 1) -> Iterator[CellSpan]:
    """A prompt of 100 tokens each, then steps in which all of a turn decode."""
    kept = 600 if limits else 2000
    n_cells = -(-n_streams * kept // 256) * 256
    cells = Cells(n_cells, **limits)  # type: ignore[arg-type]
    policy, span = SpanPolicy(n_cells, 256), NOTHING
    for sequence in range(n_streams):
        take(cells, ints(range(100)), ints([sequence] * 100))
    for step in range(1500 * turns):
        sequences = list(range(step % turns, n_streams, turns))
        take(cells, ints([100 + step // turns] * len(sequences)), ints(sequences))
        needed = CellSpan(*cells.span(ints(sequences)))
        span = policy.choose(needed, len(sequences), decoding=True, before=span)
        yield span


def kept_share(steps: Callable[[], Iterator[tuple[CellSpan, ...]]]) -> float:
    """The number of steps that found the run of the one before."""
    runs = list(steps())
    return sum(a == b for a, b in pairwise(runs)) / (len(runs) - 1)


@pytest.mark.parametrize("n_streams", [1, 3, 8, 20, 64])
def test_a_graph_lasts_while_all_decode(n_streams: int) -> None:
    """Also of a composite of two caches, whose windows move at different steps and wrap around."""
    window = {"window": 300, "memory": 200}
    assert kept_share(lambda: zip(spans(n_streams, {}), spans(n_streams, window), strict=True)) >= 0.95


def test_batches_that_take_turns_keep_the_graph() -> None:
    assert kept_share(lambda: zip(spans(16, {}, turns=2), strict=True)) >= 0.95


def test_decoding_is_one_token_of_each() -> None:
    assert is_decoding(ints([3, 1, 2]))
    assert is_decoding(ints([0]))
    assert not is_decoding(ints([3, 1, 3]))
