"""Start: how a request begins in the prefix cache, and the steps of the caller, who changes the cells."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Prefix", "Resumable", "Start", "Taken"]

Resumable = Callable[[int, int], int]
"""(sequence, length) -> the greatest length <= `length` at which the cache can resume (a window drops tokens)."""


class Prefix(NamedTuple):
    """The longest cached prefix of a prompt."""

    sequence: int | None
    """The sequence that holds it; None where length is 0."""
    length: int


class Taken(NamedTuple):
    """An empty sequence, live from now on."""

    sequence: int
    evicted: bool
    """Whether it was evicted for this: the caller removes all its cells."""


class Start(NamedTuple):
    """The start of a request: the steps that the caller takes, in order."""

    sequence: int
    """The sequence of the request."""
    remove_from: int | None
    """First remove its cells from this position on; None: nothing to remove."""
    source: int | None
    """Then share the first `length` cells of this sequence; None: it has them already, or length is 0."""
    length: int
    """Number of inputs that are in the cache already."""
