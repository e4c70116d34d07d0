"""Paths: which token sequences to compute so that each row of logits that continuations need is computed once. Pure.

The continuations of one prompt form a tree of tokens. A node at depth d is the prompt and d tokens; its row of logits
scores every token that follows there. A path is a continuation that is computed; it owns the rows of its nodes that no
path before it has. Continuations that differ in their last token only, such as the letters of a multiple choice, need
one path together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

__all__ = ["Node", "Path", "Paths", "plan_paths"]

Tokens = tuple[int, ...]


class Node(NamedTuple):
    """Where the row of logits for one token of a continuation is."""

    path: int
    depth: int


@dataclass(slots=True)
class Path:
    """A continuation that is computed after the prompt, its last token left out."""

    tokens: Tokens
    first: int
    """Depth of the first row that it owns: it shares `first` tokens behind the prompt with the one it follows."""
    follows: int | None
    """The path before it that owns the row of depth `first` - 1, and so has these tokens; None for the first path."""
    scored: list[set[int]] = field(default_factory=list)
    """Tokens to score with each row from `first` on."""


class Paths(NamedTuple):
    """The paths to compute for some continuations, and where each finds its rows."""

    paths: list[Path]
    nodes: dict[Tokens, list[Node]]
    """For each distinct continuation the rows of its tokens."""


def plan_paths(continuations: Sequence[Tokens]) -> Paths:
    """Paths for these continuations; none is empty. The same one may come more than once."""
    paths: list[Path] = []
    nodes: dict[Tokens, list[Node]] = {}
    before: list[Node] = []
    tokens_before: Tokens = ()
    # In descending order the one before is the one that begins alike for longest, and is never a prefix of the next.
    for tokens in sorted(set(continuations), reverse=True):
        common = _common(tokens, tokens_before)
        # Its row at depth `common` exists too: there the two part.
        owned = common + 1 if paths else 0
        mine = before[: min(owned, len(tokens))]
        if owned < len(tokens):
            follows = mine[-1].path if mine else None
            mine += [Node(len(paths), depth) for depth in range(owned, len(tokens))]
            paths.append(Path(tokens, owned, follows, [set() for _ in range(owned, len(tokens))]))
        for token, node in zip(tokens, mine, strict=True):
            owner = paths[node.path]
            owner.scored[node.depth - owner.first].add(token)
        nodes[tokens] = before = mine
        tokens_before = tokens
    return Paths(paths, nodes)


def _common(a: Tokens, b: Tokens) -> int:
    """How many tokens two continuations begin with alike."""
    # No generator: an interrupt that comes as one is closed would be swallowed.
    for i, (mine, other) in enumerate(zip(a, b, strict=False)):
        if mine != other:
            return i
    return min(len(a), len(b))
