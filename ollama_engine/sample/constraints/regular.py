"""Regular expressions over sets of characters, by their derivatives (Brzozowski 1964): what the lexer would do.

Characters are numbered atoms: sets that no class of the grammar tells apart. A set of atoms is the bits of an int.
An expression is a tuple: ("set", atoms), ("cat", a, b), ("alt", {a, ...}), ("rep", a, low, high); EMPTY is the empty
word, NOTHING has no word at all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

from ollama_engine.errors import GrammarError

__all__ = ["EMPTY", "NOTHING", "CheckSteps", "Regular", "alt", "cat", "first", "is_cut_short", "nullable", "rep"]

Regular: TypeAlias = tuple[Any, ...]

EMPTY: Regular = ("empty",)
NOTHING: Regular = ("set", 0)
MOST_PAIRS = 2000
"""Pairs of states that are looked at before two expressions count as overlapping."""


class CheckSteps:
    """Steps that checking one grammar may take, of some microseconds each."""

    def __init__(self, steps: int) -> None:
        self.left = steps

    def spend(self, steps: int) -> None:
        """Raise GrammarError where no more are left."""
        self.left -= steps
        if self.left < 0:
            raise GrammarError(
                "the GBNF grammar takes too long to check: too many of its parts overlap, or repeat each other; "
                "write it shorter, or as Regex or Lark"
            )


def cat(a: Regular, b: Regular) -> Regular:
    """One after the other."""
    if NOTHING in (a, b):
        return NOTHING
    if EMPTY in (a, b):
        return b if a == EMPTY else a
    if a[0] == "cat":
        return ("cat", a[1], cat(a[2], b))
    return ("cat", a, b)


def alt(*choices: Regular) -> Regular:
    """Any of these."""
    others: set[Regular] = set()
    atoms = 0
    for choice in choices:
        for each in choice[1] if choice[0] == "alt" else (choice,):
            if each[0] == "set":
                atoms |= each[1]
            else:
                others.add(each)
    if atoms:
        others.add(("set", atoms))
    if len(others) == 1:
        return next(iter(others))
    return ("alt", frozenset(others)) if others else NOTHING


def rep(inner: Regular, low: int, high: int | None) -> Regular:
    """`low` to `high` times."""
    if high == 0 or inner == EMPTY:
        return EMPTY
    if inner == NOTHING:
        return NOTHING if low else EMPTY
    return inner if low == high == 1 else ("rep", inner, low, high)


def nullable(e: Regular) -> bool:
    """Whether the empty word is one of its words."""
    if e[0] == "cat":
        return nullable(e[1]) and nullable(e[2])
    if e[0] == "alt":
        return any(map(nullable, e[1]))
    return e == EMPTY or (e[0] == "rep" and (e[2] == 0 or nullable(e[1])))


def first(e: Regular) -> int:
    """Atoms that a word begins with."""
    if e[0] == "set":
        return int(e[1])
    if e[0] == "cat":
        return first(e[1]) | (first(e[2]) if nullable(e[1]) else 0)
    if e[0] == "alt":
        return _union(map(first, e[1]))
    return first(e[1]) if e[0] == "rep" else 0


def _union(sets: Any) -> int:
    found = 0
    for each in sets:
        found |= each
    return found


def _derivative(e: Regular, atom: int, budget: CheckSteps) -> Regular:
    """Brzozowski derivative: the language of the rests behind this atom."""
    budget.spend(1)
    if e[0] == "set":
        return EMPTY if e[1] >> atom & 1 else NOTHING
    if e[0] == "cat":
        behind = cat(_derivative(e[1], atom, budget), e[2])
        return alt(behind, _derivative(e[2], atom, budget)) if nullable(e[1]) else behind
    if e[0] == "alt":
        return alt(*(_derivative(each, atom, budget) for each in e[1]))
    if e[0] == "rep":
        rest = rep(e[1], max(0, e[2] - 1), None if e[3] is None else e[3] - 1)
        return cat(_derivative(e[1], atom, budget), rest)
    return NOTHING


def is_cut_short(word: Regular, other: Regular, follows: int, budget: CheckSteps) -> bool:
    """Whether a lexer that takes the longest match may read on in `other` where a `word` has ended.

    follows: atoms that may come behind the word. True where it takes too long to tell.
    """
    budget.spend(1)
    seen = {(word, other)}
    waiting = [(word, other)]
    while waiting:
        a, b = waiting.pop()
        for atom in _atoms(first(a) & first(b)):
            pair = (_derivative(a, atom, budget), _derivative(b, atom, budget))
            if NOTHING in pair or pair in seen:
                continue
            if nullable(pair[0]) and first(pair[1]) & follows:
                return True
            if len(seen) >= MOST_PAIRS:
                return True
            seen.add(pair)
            waiting.append(pair)
    return False


def _atoms(atoms: int) -> Iterator[int]:
    bits = bin(atoms)[:1:-1]
    at = bits.find("1")
    while at >= 0:
        yield at
        at = bits.find("1", at + 1)
