"""From GBNF to Lark as llguidance reads it.

The two differ in what a terminal is: GBNF goes character by character, while llguidance's lexer takes the longest match
of a terminal, which may read past the place where a rule would go on. So:
- A grammar without recursion becomes one regular expression, which is exact.
- In others, each largest part without recursion becomes a terminal. Where the lexer might read on where it should not
  (`regular.is_cut_short`, for each two terminals and what may follow), the part is written by characters instead.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.gbnf import Characters, Expression, read_rules
from ollama_engine.sample.constraints.gbnf_productions import Builder, Choices, Symbol, walk
from ollama_engine.sample.constraints.gbnf_recursion import refuse_left_recursion
from ollama_engine.sample.constraints.regular import EMPTY, CheckSteps, Regular, first, is_cut_short, nullable

__all__ = ["lark_of"]

Atoms = list[tuple[int, int]]

MOST_STEPS = 1_000_000
"""Of checking one grammar, about 2 s. Those in llama.cpp's repository take up to 80,000."""
PAIRS_IN_A_STEP = 10
"""Pairs of terminals that begin with different characters, which is all that is asked of most."""


def lark_of(grammar: str) -> str:
    """The Lark grammar of the same texts.

    Raises GrammarError for GBNF that cannot be read, has left recursion, or is too long.
    """
    try:
        return _lark_of(grammar)
    except RecursionError:
        raise GrammarError(
            "the GBNF grammar is too long: at most some 900 parts may follow each other, and each character of a text "
            "is one; write what repeats as {n}, or write the grammar as Regex or Lark"
        ) from None


def _lark_of(grammar: str) -> str:
    rules = read_rules(grammar)
    refuse_left_recursion(rules)
    atoms = _atoms_of(rules.values())
    split: set[Regular] = set()
    budget = CheckSteps(MOST_STEPS)
    while True:
        built = Builder(rules, atoms, split, budget)
        terminals = {name: e for e, name in built.terminals.items()}
        read_on = _reads_on(built.productions, terminals, split, budget)
        if not read_on:
            return _Writer(atoms).text(built.productions, terminals)
        split |= read_on


def _reads_on(
    productions: dict[str, Choices], terminals: dict[str, Regular], split: set[Regular], budget: CheckSteps
) -> set[Regular]:
    """Terminals that may take characters which belong to what follows."""
    follows = _follows(productions, terminals, budget)
    begins = {word: first(word) for word in terminals.values()}
    too_long: set[Regular] = set()
    for other, theirs in begins.items():
        if other in split or other[0] == "set":
            continue
        budget.spend(1 + len(terminals) // PAIRS_IN_A_STEP)
        if any(
            theirs & begins[word] and is_cut_short(word, other, follows[name], budget)
            for name, word in terminals.items()
        ):
            too_long.add(other)
    return too_long


class _Writer:
    """Lark's text of productions and terminals."""

    def __init__(self, atoms: Atoms) -> None:
        self._atoms = atoms

    def text(self, productions: dict[str, Choices], terminals: dict[str, Regular]) -> str:
        """All of it."""
        lines = []
        for name, choices in productions.items():
            written = [" ".join(text for _, text in symbols) or '""' for symbols in choices]
            lines.append(f"{name}: {' | '.join(written)}")
        lines += [f"{name}: /{self._pattern(e)}/" for name, e in terminals.items()]
        return "\n".join(lines) + "\n"

    def _pattern(self, e: Regular) -> str:
        if e[0] == "set":
            return self._set(e[1])
        if e[0] == "cat":
            return self._pattern(e[1]) + self._pattern(e[2])
        if e[0] == "alt":
            return "(?:" + "|".join(sorted(map(self._pattern, e[1]))) + ")"
        if e == EMPTY:
            return ""
        inner = self._pattern(e[1])
        return f"(?:{inner}){{{e[2]},{'' if e[3] is None else e[3]}}}"

    def _set(self, atoms: int) -> str:
        ranges: list[tuple[int, int]] = []
        for (low, high), bit in zip(self._atoms, bin(atoms)[:1:-1], strict=False):
            if bit == "1":
                joined = bool(ranges) and ranges[-1][1] == low - 1
                ranges[-1:] = [(ranges[-1][0], high)] if joined else [*ranges[-1:], (low, high)]
        spans = (rf"\x{{{low:X}}}" + (rf"-\x{{{high:X}}}" if low < high else "") for low, high in ranges)
        return f"[{''.join(spans)}]"


def _atoms_of(expressions: Iterable[Expression]) -> Atoms:
    """Ranges that no class tells apart, over all characters."""
    edges = {0, 0xD800, 0xE000, 0x110000}
    for expression in expressions:
        for e in walk(expression):
            if isinstance(e, Characters):
                edges |= {edge for low, high in e.ranges for edge in (low, high + 1)}
    ordered = sorted(edges)
    return [(a, b - 1) for a, b in pairwise(ordered) if a != 0xD800]


def _follows(productions: dict[str, Choices], terminals: dict[str, Regular], budget: CheckSteps) -> dict[str, int]:
    """For each terminal, the atoms that may come behind it; control tokens are none."""
    starts: dict[str, int] = {name: first(e) for name, e in terminals.items()}
    empty = {name for name, e in terminals.items() if nullable(e)}
    starts |= dict.fromkeys(productions, 0)
    follows = dict.fromkeys(starts, 0)
    changed = True
    while changed:
        before = (dict(starts), dict(follows), len(empty))
        for name, choices in productions.items():
            for symbols in choices:
                budget.spend(1 + len(symbols))
                if all(kind != "token" and text in empty for kind, text in symbols):
                    empty.add(name)
                behind = follows[name]
                for kind, text in reversed(symbols):
                    if kind == "token":
                        behind = 0
                        continue
                    follows[text] |= behind
                    behind = starts[text] | (behind if text in empty else 0)
                starts[name] |= _starts_of(symbols, starts, empty)
        changed = before != (starts, follows, len(empty))
    return {name: follows[name] for name in terminals}


def _starts_of(symbols: list[Symbol], starts: dict[str, int], empty: set[str]) -> int:
    begins = 0
    for kind, text in symbols:
        if kind == "token":
            break
        begins |= starts[text]
        if text not in empty:
            break
    return begins
