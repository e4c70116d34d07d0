"""Where a chat template pays for what it does: its loops, macros, comparisons, filters and methods of texts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any

from jinja2 import nodes
from jinja2.utils import pass_context

from ollama_engine.chat.budget import Budget, current_budget
from ollama_engine.chat.provenance import Traced, trusted_spans

__all__ = ["MADE", "listed_join", "metered", "metering_filters", "pay_for_copies", "pay_for_method", "with_meters"]

STEP, READ, ENTER, MADE = " step", " read", " enter", " made"
"""Names of filters, which no template can spell."""

AT_A_GLANCE = frozenset({"length", "count", "first", "default", "d", "attr", "items"})
"""Filters that do not look at each item of a list."""
OF_ITEMS = frozenset({
    "list", "last", "map", "select", "reject", "selectattr", "rejectattr", "sort", "unique", "reverse", "batch",
    "slice", "groupby", "dictsort", "sum", "max", "min", "random", "join",
})  # fmt: skip
"""Filters that look at each item, and not into it. All others may write the whole value."""
NESTING = frozenset({"batch", "slice", "groupby"})
"""Filters that put items into new lists."""


def with_meters(tree: nodes.Template) -> nodes.Template:
    """The same template, which pays as it is rendered."""
    for loop in tree.find_all(nodes.For):
        loop.body.insert(0, _step(loop.lineno))
        if loop.test is not None:  # the body sees the items that pass only
            loop.iter = _through(ENTER, loop.iter)
    for macro in tree.find_all(nodes.Macro):
        macro.body.insert(0, _step(macro.lineno))
    for block in tree.find_all(nodes.CallBlock):
        block.body.insert(0, _step(block.lineno))
    for compared in list(tree.find_all(nodes.Compare)):
        compared.expr = _through(READ, compared.expr)
        for operand in compared.ops:
            operand.expr = _through(READ, operand.expr)
    for part in list(tree.find_all(nodes.Getitem)):
        if isinstance(part.arg, nodes.Slice):
            part.node = _through(READ, part.node)
    return tree


def _step(line: int) -> nodes.Node:
    return nodes.ExprStmt(nodes.Filter(nodes.Const(None), STEP, [], [], None, None)).set_lineno(line)


def _through(name: str, value: nodes.Node) -> nodes.Expr:
    """A value that goes through one of our filters; a constant costs nothing."""
    if isinstance(value, nodes.Const):
        return value
    return nodes.Filter(value, name, [], [], None, None, lineno=value.lineno)


OF_LINES = ("indent", "wordwrap", "urlize")
"""Filters that write a text which they are given for each line or word."""
OF_MARKUP = ("e", "escape", "forceescape")
"""Filters that put marks together for each character that they replace."""


def metering_filters() -> dict[str, Callable[..., Any]]:
    """The filters that `with_meters` and literals name. They want a context, so that none is computed beforehand."""

    @pass_context
    def step(context: object, value: Any) -> Any:
        current_budget().step()
        return value

    @pass_context
    def read(context: object, value: Any) -> Any:
        budget = current_budget()
        if isinstance(value, (list, tuple)):
            budget.nested(value, texts=True)
        else:
            budget.read(value)
        return value

    @pass_context
    def enter(context: object, value: Any) -> Any:
        return current_budget().made(iter(value)) if isinstance(value, Iterable) else value

    def made(value: Any) -> Any:
        current_budget().nested(value)
        return value

    return {STEP: step, READ: read, ENTER: enter, MADE: made}


def metered(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter or a test that pays for what it is given and for what it makes."""
    n_passed = int(hasattr(function, "jinja_pass_arg"))
    """1 where the first argument is jinja2's: its context, or the environment."""

    @wraps(function)
    def paid(*args: Any, **values: Any) -> Any:
        budget, given = current_budget(), args[n_passed:]
        budget.step()
        for value in (*given, *values.values()):
            if isinstance(value, str) or name in OF_ITEMS:
                budget.read(value)
            elif name not in AT_A_GLANCE:
                budget.nested(value, texts=True)
        if name == "replace":
            text, *texts = (str(value) for value in (*given, *values.values()))
            pay_for_method(budget, text, "replace", texts)
        pay_for_filter(budget, name, [*given, *values.values()])
        made = budget.made(function(*args, **values))
        return map(_nested, made) if name in NESTING else made

    return paid


def pay_for_filter(budget: Budget, name: str, given: Sequence[Any]) -> None:
    """Pay for what a filter of texts makes before it is made: texts for each line, word or character."""
    if not given or name not in (*OF_LINES, *OF_MARKUP):
        return
    text = str(given[0])
    if name in OF_LINES:
        longest = max((len(value) for value in given[1:] if isinstance(value, str)), default=0)
        budget.characters((len(text) + 1) * longest)
    else:
        budget.step(sum(text.count(character) for character in "&<>'\""))


def _nested(value: Any) -> Any:
    current_budget().nested(value)
    return value


def listed_join(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments of a method; what `join` is given as a list, which can be counted first."""
    return ([*args[0]], *args[1:]) if name == "join" and args and isinstance(args[0], Iterable) else args


def pay_for_copies(budget: Budget, text: Any, times: Any) -> None:
    """Pay for a text that is repeated, whose marks are put together one by one where only a part of it is marked."""
    if isinstance(text, Traced) and isinstance(times, int) and trusted_spans(text) != ((0, len(text)),):
        budget.step(max(0, times))


def pay_for_method(budget: Budget, text: Any, name: str, given: Sequence[Any]) -> None:
    """Pay for what a method of a text reads, and for what it makes where that may be longer than all it is given."""
    for value in (text, *given):
        budget.read(value)
    if isinstance(text, str) and name == "splitlines":
        budget.step(text.count("\n") + text.count("\r"))
    if not isinstance(text, str) or not given:
        return
    first = given[0]
    if isinstance(text, Traced) and isinstance(first, str):
        budget.step(text.count(first))  # its marks are put together one by one
    if name == "replace" and len(given) > 1 and isinstance(first, str) and isinstance(given[1], str):
        budget.characters(text.count(first) * len(given[1]))
    elif name == "join" and isinstance(first, list):
        budget.characters(sum(len(part) + len(text) for part in first if isinstance(part, str)))
    elif name == "expandtabs" and isinstance(first, int):
        budget.characters(text.count("\t") * max(0, first))
    elif name == "translate" and isinstance(first, Mapping):
        longest = max((len(part) for part in first.values() if isinstance(part, str)), default=1)
        budget.characters(len(text) * longest)
    elif name in ("format", "format_map"):
        for _ in range(text.count("{") + text.count("%")):
            budget.nested(list(given), texts=True)
