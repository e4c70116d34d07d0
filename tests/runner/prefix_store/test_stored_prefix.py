"""Which blocks a prompt goes on from, beside trying every number of blocks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ollama_engine.kvcache.visibility import Visibility
from ollama_engine.runner.prefix_store.stored_prefix import BlockPart, blocks_needed, longest_stored, rows_of_block
from ollama_engine.runner.schedule.prefix_blocks import BLOCK

KINDS = (
    Visibility(), Visibility(window=1), Visibility(window=100), Visibility(window=BLOCK + 1), Visibility(window=700),
    Visibility(chunk=BLOCK), Visibility(chunk=300), Visibility(window=2),
)  # fmt: skip
kinds = st.lists(st.sampled_from(KINDS), min_size=1, max_size=3)


def first_seen(layers: list[Visibility], position: int) -> list[int]:
    return [layer.first_of(position) for layer in layers]


@given(kinds, st.integers(0, 12), st.sets(st.tuples(st.integers(0, 11), st.integers(0, 2)), max_size=10))
def test_the_longest_prefix_is_found(layers: list[Visibility], most: int, gone: set[tuple[int, int]]) -> None:
    def stored(part: BlockPart) -> bool:
        return tuple(part) not in gone

    def seen(position: int) -> list[int]:
        return first_seen(layers, position)

    possible = [n for n in range(most + 1) if all(map(stored, blocks_needed(n, seen)))]
    assert longest_stored(most, seen, stored) == max(possible)


@given(kinds, st.integers(1, 12))
def test_what_is_read_is_all_that_a_token_behind_it_sees(layers: list[Visibility], n: int) -> None:
    def seen(position: int) -> list[int]:
        return first_seen(layers, position)

    positions: list[set[int]] = [set() for _ in layers]
    for block, kind in blocks_needed(n, seen):
        positions[kind].update(range(*rows_of_block(block, seen)[kind]))
    for layer, have in zip(layers, positions, strict=True):
        assert set(range(layer.first_of(n * BLOCK), n * BLOCK)) <= have
