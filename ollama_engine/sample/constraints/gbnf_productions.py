"""GBNF rules as productions over terminals: each largest part without recursion is one terminal."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Set
from itertools import count

from ollama_engine.errors import GrammarError
from ollama_engine.sample.constraints.gbnf import (
    Alternatives,
    Characters,
    Concatenation,
    Expression,
    GrammarToken,
    Reference,
    Repeat,
)
from ollama_engine.sample.constraints.gbnf_recursion import on_cycles
from ollama_engine.sample.constraints.regular import EMPTY, CheckSteps, Regular, alt, cat, rep

__all__ = ["Builder", "Choices", "Symbol", "walk"]

MOST_NODES = 20_000
"""Most nodes of expressions with all rules written in: some grammars double with each rule."""

Symbol = tuple[str, str]
"""("rule", its name), ("terminal", its name) or ("token", as Lark writes it)."""
Choices = list[list[Symbol]]


def walk(e: Expression) -> Iterable[Expression]:
    """An expression and all in it."""
    yield e
    inner = e.parts if isinstance(e, Concatenation) else e.choices if isinstance(e, Alternatives) else ()
    for each in (e.inner,) if isinstance(e, Repeat) else inner:
        yield from walk(each)


class Builder:
    """Writes the productions of a grammar.

    rules: as they were read. atoms: ranges of characters that no class tells apart. split: what is written character
    by character.
    """

    def __init__(
        self, rules: dict[str, Expression], atoms: list[tuple[int, int]], split: Set[Regular], budget: CheckSteps
    ) -> None:
        self.productions: dict[str, Choices] = {}
        self.terminals: dict[Regular, str] = {}
        self._rules = rules
        self._recursive = on_cycles({
            name: {e.rule for e in walk(rule) if isinstance(e, Reference)} for name, rule in rules.items()
        })  # fmt: skip
        self._lows = [low for low, _ in atoms]
        self._split = split
        self._budget = budget
        self._nodes = 0
        self._numbers = count(1)
        self._names = {name: "start" if name == "root" else f"r{next(self._numbers)}" for name in rules}
        self._rule("root")

    def _rule(self, name: str) -> Symbol:
        """A rule, which is written when it is first referred to."""
        symbol = ("rule", self._names[name])
        if symbol[1] not in self.productions:
            self.productions[symbol[1]] = []  # it may refer to itself
            self.productions[symbol[1]] = self._choices(self._rules[name])
        return symbol

    def _fresh(self, choices: Choices) -> list[Symbol]:
        name = f"r{next(self._numbers)}"
        self.productions[name] = choices
        return [("rule", name)]

    def _choices(self, e: Expression) -> Choices:
        if not isinstance(e, Alternatives):
            return [self._symbols(e)]
        regular = [self._regular(each) for each in e.choices]
        plain = [each for each in regular if each is not None]
        others = [self._symbols(each) for each, known in zip(e.choices, regular, strict=True) if known is None]
        return [*([self._terminal(alt(*plain))] if plain else []), *others]

    def _symbols(self, e: Expression) -> list[Symbol]:
        whole = self._regular(e)
        if whole is not None:
            return self._terminal(whole)
        if isinstance(e, Reference):
            return [self._rule(e.rule)]
        if isinstance(e, GrammarToken):
            return [("token", e.name)]
        if isinstance(e, Repeat):
            return self._repeated(lambda: self._symbols(e.inner), e.low, e.high)
        if isinstance(e, Concatenation):
            return self._joined(e)
        return self._fresh(self._choices(e))

    def _joined(self, e: Concatenation) -> list[Symbol]:
        """The symbols of a sequence; neighbours without recursion are one terminal."""
        symbols: list[Symbol] = []
        together: Regular = EMPTY
        for part in e.parts:
            plain = self._regular(part)
            if plain is None:
                symbols += [*self._terminal(together), *self._symbols(part)]
                together = EMPTY
            else:
                together = cat(together, plain)
        return [*symbols, *self._terminal(together)]

    def _terminal(self, e: Regular) -> list[Symbol]:
        """A terminal, or its characters one by one."""
        if e == EMPTY:
            return []
        if e not in self._split or e[0] == "set":
            return [("terminal", self.terminals.setdefault(e, f"T{len(self.terminals) + 1}"))]
        if e[0] == "cat":
            return [*self._terminal(e[1]), *self._terminal(e[2])]
        if e[0] == "alt":
            return self._fresh([self._terminal(each) for each in sorted(e[1], key=repr)])
        return self._repeated(lambda: self._terminal(e[1]), e[2], e[3])

    def _repeated(self, symbols: Callable[[], list[Symbol]], low: int, high: int | None) -> list[Symbol]:
        once = symbols()
        self._budget.spend(len(once) * max(low, high or 0))
        if high is None:
            name = f"r{next(self._numbers)}"
            self.productions[name] = [[], [("rule", name), *once]]
            return [*once * low, ("rule", name)]
        rest: list[Symbol] = []
        for _ in range(high - low):
            rest = self._fresh([[], [*once, *rest]])
        return [*once * low, *rest]

    def _regular(self, e: Expression) -> Regular | None:
        """The expression with all rules written in; None where that has no end, or a token is in it."""
        self._budget.spend(1)
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise GrammarError("the GBNF grammar is too large: its rules refer to each other too often")
        if isinstance(e, Characters):
            return ("set", sum(self._bits_below(high + 1) - self._bits_below(low) for low, high in e.ranges))
        if isinstance(e, Reference):
            return None if e.rule in self._recursive else self._regular(self._rules[e.rule])
        if isinstance(e, GrammarToken):
            return None
        if isinstance(e, Repeat):
            inner = self._regular(e.inner)
            return None if inner is None else rep(inner, e.low, e.high)
        return self._regular_list(e)

    def _bits_below(self, code: int) -> int:
        """1 behind the bits of all atoms below a character: their edges are those of the sets."""
        return 1 << bisect_left(self._lows, code)

    def _regular_list(self, e: Concatenation | Alternatives) -> Regular | None:
        regulars: list[Regular] = []
        for part in e.parts if isinstance(e, Concatenation) else e.choices:
            each = self._regular(part)
            if each is None:
                return None
            regulars.append(each)
        if isinstance(e, Alternatives):
            return alt(*regulars)
        whole = EMPTY
        for each in reversed(regulars):
            whole = cat(each, whole)
        return whole
