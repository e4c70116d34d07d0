"""Rules of a GBNF grammar that begin with themselves. llama.cpp refuses them, and they are refused here too.

Source: "left recursion" in llama.cpp's grammar parser; Aho, Sethi, Ullman, section 4.3. The matcher takes some of them,
but loses texts where a part before the recursion may be empty.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.gbnf import Alternatives, Concatenation, Expression, Reference, Repeat

__all__ = ["on_cycles", "refuse_left_recursion"]


def refuse_left_recursion(rules: Mapping[str, Expression]) -> None:
    """Raise GrammarError for a rule that may begin with itself, at once or through others."""
    empty = _empty_rules(rules)
    cyclic = on_cycles({name: set(_beginnings(rule, empty)) for name, rule in rules.items()})
    name = next((name for name in rules if name in cyclic), None)
    if name is not None:
        raise GrammarError(
            f"the GBNF grammar cannot be used: rule {name!r} begins with itself (left recursion); "
            f"write what repeats with * or +, or put {name!r} behind something"
        )


def on_cycles(graph: Mapping[str, Collection[str]]) -> set[str]:
    """Nodes from which a way leads back to themselves; each edge is followed twice (Kosaraju, Sharir 1981)."""
    backwards: dict[str, list[str]] = {name: [] for name in graph}
    for name, others in graph.items():
        for other in others:
            backwards[other].append(name)
    component: dict[str, str] = {}
    for root in reversed(_by_end(graph)):
        waiting = [root]
        while waiting:
            name = waiting.pop()
            if name not in component:
                component[name] = root
                waiting += backwards[name]
    sizes = Counter(component.values())
    return {name for name in graph if sizes[component[name]] > 1 or name in graph[name]}


def _by_end(graph: Mapping[str, Collection[str]]) -> list[str]:
    """Nodes in the order in which a search that goes deep first leaves them."""
    left: list[str] = []
    seen: set[str] = set()
    for root in graph:
        open_ = [(root, iter(graph[root]))] if root not in seen else []
        seen.add(root)
        while open_:
            name, others = open_[-1]
            other = next((each for each in others if each not in seen), None)
            if other is None:
                left.append(name)
                open_.pop()
            else:
                seen.add(other)
                open_.append((other, iter(graph[other])))
    return left


def _empty_rules(rules: Mapping[str, Expression]) -> set[str]:
    """Rules that may be the empty text. Each part is looked at once, and again when one in it may be empty."""
    above: list[int | str] = []
    """Of each part, the part or rule around it."""
    missing: list[int] = []
    """How many parts in it must turn out to be empty until it may be empty itself."""
    users: defaultdict[str, list[int | str]] = defaultdict(list)

    def add(e: Expression, around: int | str) -> None:
        number = len(above)
        above.append(around)
        inner = e.parts if isinstance(e, Concatenation) else e.choices if isinstance(e, Alternatives) else ()
        optional = isinstance(e, Repeat) and e.low == 0
        missing.append(len(inner) if isinstance(e, Concatenation) else 0 if optional else 1)
        if isinstance(e, Reference):
            users[e.rule].append(number)
        for each in (e.inner,) if isinstance(e, Repeat) else inner:
            add(each, number)

    for name, rule in rules.items():
        add(rule, name)
    empty: set[str] = set()
    waiting: list[int | str] = [number for number, n in enumerate(missing) if n == 0]
    while waiting:
        part = waiting.pop()
        if isinstance(part, str):
            empty.add(part)
        for outer in users[part] if isinstance(part, str) else [above[part]]:
            if isinstance(outer, int):
                missing[outer] -= 1
            if isinstance(outer, str) or missing[outer] == 0:
                waiting.append(outer)
    return empty


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
