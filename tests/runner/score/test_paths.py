"""Paths: every row that a continuation needs is owned by one path, which can be computed in the planned order."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.runner.score.paths import Node, Paths, Tokens, plan_paths
from tests.support.suite import scaled

CASES: list[tuple[list[Tokens], list[tuple[Tokens, int, int | None]]]] = [
    ([], []),
    ([(1,)], [((1,), 0, None)]),
    ([(1,), (2,), (3,)], [((3,), 0, None)]),
    ([(1, 2), (1,), (1, 2, 3)], [((1, 2, 3), 0, None)]),
    ([(1, 2), (1, 3), (1, 4)], [((1, 4), 0, None)]),
    ([(1, 9), (2, 9)], [((2, 9), 0, None), ((1, 9), 1, 0)]),
    ([(1, 2, 3, 4), (1, 2, 5, 6), (7, 8)], [((7, 8), 0, None), ((1, 2, 5, 6), 1, 0), ((1, 2, 3, 4), 3, 1)]),
]


@pytest.mark.parametrize(("continuations", "expected"), CASES)
def test_paths(continuations: list[Tokens], expected: list[tuple[Tokens, int, int | None]]) -> None:
    found = plan_paths(continuations)
    assert [(path.tokens, path.first, path.follows) for path in found.paths] == expected


def check(continuations: list[Tokens], planned: Paths) -> None:
    owned = set()
    for number, path in enumerate(planned.paths):
        assert len(path.scored) == len(path.tokens) - path.first > 0
        assert all(path.scored), "no row is computed for nothing"
        for depth in range(path.first, len(path.tokens)):
            node = path.tokens[:depth]
            assert node not in owned, "a row is computed once"
            owned.add(node)
        assert (path.follows is None) == (number == 0)
        if path.follows is not None:
            leader, shared = planned.paths[path.follows], path.first - 1
            assert path.follows < number
            assert leader.tokens[:shared] == path.tokens[:shared]
            assert shared < len(leader.tokens), "what is shared is computed: all of a path but its last token"
    assert owned == {tokens[:depth] for tokens in continuations for depth in range(len(tokens))}
    for tokens in continuations:
        for depth, (token, node) in enumerate(zip(tokens, planned.nodes[tokens], strict=True)):
            path = planned.paths[node.path]
            assert node == Node(node.path, depth)
            assert path.tokens[:depth] == tokens[:depth]
            assert token in path.scored[depth - path.first]


@settings(max_examples=scaled(2000, quick=300))
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6).map(tuple), max_size=12))
def test_every_row_has_one_owner(continuations: list[Tokens]) -> None:
    check(continuations, plan_paths(continuations))
