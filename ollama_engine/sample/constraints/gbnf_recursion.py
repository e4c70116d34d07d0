"""Rules of a GBNF grammar that begin with themselves. llama.cpp refuses them, and they are refused here too.

Source: "left recursion" in llama.cpp's grammar parser; Aho, Sethi, Ullman, section 4.3. The matcher takes some of them,
but loses texts where a part before the recursion may be empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.gbnf import Alternatives, Concatenation, Expression, Reference, Repeat

__all__ = ["refuse_left_recursion"]


def refuse_left_recursion(rules: Mapping[str, Expression]) -> None:
    """Raise GrammarError for a rule that may begin with itself, at once or through others."""
    empty = _empty_rules(rules)
    begins = {name: set(_beginnings(rule, empty)) for name, rule in rules.items()}
    for name in rules:
        waiting, seen = list(begins[name]), set(begins[name])
        while waiting:
            new = begins.get(waiting.pop(), set()) - seen
            seen |= new
            waiting += new
        if name in seen:
            raise GrammarError(
                f"the GBNF grammar cannot be used: rule {name!r} begins with itself (left recursion); "
                f"write what repeats with * or +, or put {name!r} behind something"
            )


def _empty_rules(rules: Mapping[str, Expression]) -> set[str]:
    """Rules that may be the empty text."""
    empty: set[str] = set()
    while True:
        found = {name for name, rule in rules.items() if _may_be_empty(rule, empty)}
        if found == empty:
            return empty
        empty = found


def _may_be_empty(e: Expression, empty: set[str]) -> bool:
    if isinstance(e, Reference):
        return e.rule in empty
    if isinstance(e, Alternatives):
        return any(_may_be_empty(choice, empty) for choice in e.choices)
    if isinstance(e, Concatenation):
        return all(_may_be_empty(part, empty) for part in e.parts)
    return isinstance(e, Repeat) and (e.low == 0 or _may_be_empty(e.inner, empty))


def _beginnings(e: Expression, empty: set[str]) -> Iterator[str]:
    """Rules that `e` may begin with."""
    if isinstance(e, Reference):
        yield e.rule
    elif isinstance(e, Alternatives):
        for choice in e.choices:
            yield from _beginnings(choice, empty)
    elif isinstance(e, Repeat):
        yield from _beginnings(e.inner, empty)
    elif isinstance(e, Concatenation):
        for part in e.parts:
            yield from _beginnings(part, empty)
            if not _may_be_empty(part, empty):
                return
