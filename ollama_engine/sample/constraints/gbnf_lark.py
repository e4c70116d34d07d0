"""From GBNF to Lark as llguidance reads it.

The two differ in what a terminal is: GBNF goes character by character, while llguidance's lexer takes the longest match
of a terminal, which may read past the place where a rule would go on. So
- a grammar without recursion becomes one regular expression, which is exact;
- in others, each largest part without recursion becomes a terminal, unless the lexer might read on where it should
  not (`regular.is_cut_short`, for each two terminals and what may follow); such a part is written character by character.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.gbnf import (
    Alternatives,
    Characters,
    Expression,
    Reference,
    Repeat,
    Sequence,
    Token,
    read_rules,
)
from ollama_engine.sample.constraints.regular import EMPTY, Regular, alt, cat, first, is_cut_short, nullable, rep

__all__ = ["lark_of"]

MOST_NODES = 20_000
"""Of expressions with all rules written in: some grammars double with each rule."""

Symbol = tuple[str, str]
"""("rule", its name), ("terminal", its name) or ("token", as Lark writes it)."""
Productions = dict[str, list[list[Symbol]]]


def lark_of(grammar: str) -> str:
    """The Lark grammar of the same texts. Raises GrammarError for GBNF that cannot be read."""
    return _Converter(read_rules(grammar)).lark()


class _Converter:
    """Rules of one grammar, on their way to productions over terminals."""

    def __init__(self, rules: dict[str, Expression]) -> None:
        self._rules = rules
        self._recursive = {name for name in rules if name in _reachable(rules, name)}
        self._atoms = _atoms_of(rules.values())
        self._nodes = 0
        self._split: set[Regular] = set()
        """Expressions that are written character by character."""

    def lark(self) -> str:
        """The grammar's text."""
        while True:
            productions, terminals = self._productions()
            read_on = self._reads_on(productions, terminals)
            if not read_on:
                return self._written(productions, terminals)
            self._split |= read_on

    # -- what is regular -----------------------------------------------------------------------------------------------

    def _regular(self, e: Expression) -> Regular | None:
        """The expression with all rules written in; None where that has no end, or a token is in it."""
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise GrammarError("the GBNF grammar is too large: its rules refer to each other too often")
        if isinstance(e, Characters):
            return ("set", self._bits(e))
        if isinstance(e, Reference):
            return None if e.rule in self._recursive else self._regular(self._rules[e.rule])
        if isinstance(e, Repeat):
            inner = self._regular(e.inner)
            return None if inner is None else rep(inner, e.low, e.high)
        if isinstance(e, Token):
            return None
        found = [self._regular(part) for part in (e.parts if isinstance(e, Sequence) else e.choices)]
        known = [part for part in found if part is not None]
        if len(known) < len(found):
            return None
        return _cat_all(known) if isinstance(e, Sequence) else alt(*known)

    def _bits(self, e: Characters) -> int:
        return sum(1 << i for i, (low, _) in enumerate(self._atoms) if any(a <= low <= b for a, b in e.ranges))

    # -- productions ---------------------------------------------------------------------------------------------------

    def _productions(self) -> tuple[Productions, dict[str, Regular]]:
        self._nodes = 0
        made: Productions = {}
        terminals: dict[Regular, str] = {}
        numbers = count(1)
        rule_names = {name: "start" if name == "root" else f"r{next(numbers)}" for name in self._rules}

        def fresh(choices: list[list[Symbol]]) -> list[Symbol]:
            name = f"r{next(numbers)}"
            made[name] = choices
            return [("rule", name)]

        def regular(e: Regular) -> list[Symbol]:
            if e == EMPTY:
                return []
            if e not in self._split or e[0] == "set":
                return [("terminal", terminals.setdefault(e, f"T{len(terminals) + 1}"))]
            if e[0] == "cat":
                return [*regular(e[1]), *regular(e[2])]
            if e[0] == "alt":
                return fresh([regular(each) for each in sorted(e[1], key=repr)])
            return repeated(lambda: regular(e[1]), e[2], e[3])

        def repeated(symbols: object, low: int, high: int | None) -> list[Symbol]:
            assert callable(symbols)
            once: list[Symbol] = symbols()
            if high is None:
                name = f"r{next(numbers)}"
                made[name] = [[], [("rule", name), *once]]
                return [*once * low, ("rule", name)]
            rest: list[Symbol] = []
            for _ in range(high - low):
                rest = fresh([[], [*once, *rest]])
            return [*once * low, *rest]

        def symbols_of(e: Expression) -> list[Symbol]:
            whole = self._regular(e)
            if whole is not None:
                return regular(whole)
            if isinstance(e, Reference):
                if e.rule not in self._recursive:  # a token is in it
                    made.setdefault(rule_names[e.rule], choices_of(self._rules[e.rule]))
                return [("rule", rule_names[e.rule])]
            if isinstance(e, Token):
                return [("token", e.name)]
            if isinstance(e, Repeat):
                return repeated(lambda: symbols_of(e.inner), e.low, e.high)
            if isinstance(e, Sequence):
                return self._joined(e, symbols_of, regular)
            return fresh(choices_of(e))

        def choices_of(e: Expression) -> list[list[Symbol]]:
            if not isinstance(e, Alternatives):
                return [symbols_of(e)]
            plain = [found for each in e.choices if (found := self._regular(each)) is not None]
            others = [symbols_of(each) for each in e.choices if self._regular(each) is None]
            return [*([regular(alt(*plain))] if plain else []), *others]

        for name in ("root", *sorted(self._recursive - {"root"})):
            made[rule_names[name]] = choices_of(self._rules[name])
        return made, {name: e for e, name in terminals.items()}

    def _joined(self, e: Sequence, symbols_of: object, regular: object) -> list[Symbol]:
        """The symbols of a sequence; neighbours without recursion are one terminal."""
        assert callable(symbols_of)
        assert callable(regular)
        found: list[Symbol] = []
        together: Regular = EMPTY
        for part in e.parts:
            plain = self._regular(part)
            if plain is None:
                found += [*regular(together), *symbols_of(part)]
                together = EMPTY
            else:
                together = cat(together, plain)
        return [*found, *regular(together)]

    # -- where a lexer would read on -----------------------------------------------------------------------------------

    def _reads_on(self, productions: Productions, terminals: dict[str, Regular]) -> set[Regular]:
        """Terminals that may take characters which belong to what follows."""
        follows = _follows(productions, terminals)
        return {
            other
            for name, word in terminals.items()
            for other in terminals.values()
            if other not in self._split and other[0] != "set" and is_cut_short(word, other, follows[name])
        }

    # -- writing -------------------------------------------------------------------------------------------------------

    def _written(self, productions: Productions, terminals: dict[str, Regular]) -> str:
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
        for i, (low, high) in enumerate(self._atoms):
            if atoms >> i & 1:
                joined = bool(ranges) and ranges[-1][1] == low - 1
                ranges[-1:] = [(ranges[-1][0], high)] if joined else [*ranges[-1:], (low, high)]
        spans = (rf"\x{{{low:X}}}" + (rf"-\x{{{high:X}}}" if low < high else "") for low, high in ranges)
        return f"[{''.join(spans)}]"


def _cat_all(parts: list[Regular]) -> Regular:
    found = EMPTY
    for part in reversed(parts):
        found = cat(part, found)
    return found


def _inner(e: Expression) -> tuple[Expression, ...]:
    if isinstance(e, Sequence):
        return e.parts
    if isinstance(e, Alternatives):
        return e.choices
    return (e.inner,) if isinstance(e, Repeat) else ()


def _walk(e: Expression) -> Iterable[Expression]:
    yield e
    for inner in _inner(e):
        yield from _walk(inner)


def _reachable(rules: dict[str, Expression], name: str) -> set[str]:
    """Rules that a rule refers to, over others too."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        for e in _walk(rules[waiting.pop()]):
            if isinstance(e, Reference) and e.rule not in found:
                found.add(e.rule)
                waiting.append(e.rule)
    return found


def _atoms_of(expressions: Iterable[Expression]) -> list[tuple[int, int]]:
    """Ranges that no class tells apart, over all characters."""
    edges = {0, 0xD800, 0xE000, 0x110000}
    for expression in expressions:
        for e in _walk(expression):
            if isinstance(e, Characters):
                edges |= {edge for low, high in e.ranges for edge in (low, high + 1)}
    ordered = sorted(edges)
    return [(a, b - 1) for a, b in zip(ordered, ordered[1:], strict=False) if a != 0xD800]


def _follows(productions: Productions, terminals: dict[str, Regular]) -> dict[str, int]:
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
    found = 0
    for kind, text in symbols:
        if kind == "token":
            break
        found |= starts[text]
        if text not in empty:
            break
    return found
