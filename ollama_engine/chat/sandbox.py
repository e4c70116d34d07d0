"""The environment of chat templates: jinja2's immutable sandbox, with the names that transformers adds.

Transformers' `apply_chat_template` (transformers/utils/chat_template_utils.py) is the reference for what a template
finds here: `trim_blocks`, `lstrip_blocks`, break and continue, `generation` blocks, `raise_exception`, `strftime_now`,
`tojson` as `json.dumps` writes, and stricter `dict` and `namespace`. In addition, literals are `Traced`, and what joins
texts keeps their marks.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.compiler import CodeGenerator, Frame
from jinja2.environment import Template
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.filters import make_attrgetter
from jinja2.parser import Parser
from jinja2.runtime import Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_environment

from ollama_engine.chat.bounds import WIDENING, bounded, check_json_layout, check_method, check_operation
from ollama_engine.chat.budget import current_budget
from ollama_engine.chat.metering import (
    MADE,
    listed_join,
    metered,
    metering_filters,
    pay_for_copies,
    pay_for_method,
    with_meters,
)
from ollama_engine.chat.provenance import Safe, Traced, joined

__all__ = ["ChatEnvironment", "RefusedError"]


class RefusedError(TemplateError):
    """A template called `raise_exception`."""


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Jinja2's environment of one template. `now` is the clock of `strftime_now`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, now: Callable[[], datetime] = datetime.now) -> None:
        extensions: list[type[Extension]] = [GenerationBlocks, LoopControlExtension]
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=extensions, finalize=_put_out)
        self.literals: list[Traced] = []
        """Texts of the compiled template, by their numbers in its code."""
        self.filters["tojson"] = _tojson
        self.filters["join"] = _join
        self.filters["safe"] = lambda value: Safe.of(str(value))
        self.filters["escape"] = self.filters["e"] = _escape
        self.filters["format"] = _format
        self.filters["sum"] = _sum
        for name in WIDENING:
            self.filters[name] = bounded(self.filters[name])
        self.filters = {name: metered(name, filter_) for name, filter_ in self.filters.items()} | metering_filters()
        tests: dict[str, Any] = self.tests
        self.tests = {name: metered(name, test) for name, test in tests.items()}
        del self.globals["lipsum"]  # makes any number of words; nothing pays for them
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda format: now().strftime(format)
        self.globals["dict"] = _TemplateDict()
        self.globals["namespace"] = _TemplateNamespace

    # jinja2 calls it as a method of the instance: texts that templates put out, and those of macros and set blocks.
    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """The texts as one."""
        texts = list(parts)
        current_budget().characters(sum(map(len, texts)))
        return joined(texts)

    def from_string(self, source: Any, *args: Any, **values: Any) -> Template:
        """A template whose loops, macros and comparisons are paid for."""
        return super().from_string(with_meters(self.parse(source)), *args, **values)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """`+`, `*`, `**` and `%`, for what does not fill the memory."""
        budget = current_budget()
        budget.step()
        check_operation(operator, left, right)
        for value in (left, right):
            budget.read(value)
        if operator == "*":
            pay_for_copies(budget, left, right)
            pay_for_copies(budget, right, left)
        if operator == "+":  # what it makes has been paid for
            return super().call_binop(context, operator, left, right)
        if operator == "%" and isinstance(left, str):
            pay_for_method(budget, left, "format", (right,))
        return budget.made(super().call_binop(context, operator, left, right))

    def call(self, context: Any, function: Any, /, *args: Any, **values: Any) -> Any:
        """A call; one of a text's method for what does not fill the memory."""
        budget, owner = current_budget(), getattr(function, "__self__", None)
        budget.step()
        if isinstance(owner, (str, bytes, int)):
            name = getattr(function, "__name__", "")
            args = listed_join(name, args)
            check_method(owner, name, (*args, *values.values()))
            pay_for_method(budget, owner, name, (*args, *values.values()))
        elif isinstance(owner, _TemplateDict) or isinstance(function, (_TemplateDict, type)):
            budget.nested((args, values))  # dict, namespace, cycler: they hold what they are given
        return budget.made(super().call(context, function, *args, **values))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """jinja2's `str.format`, for what does not fill the memory."""
        made = super().wrap_str_format(value)
        if made is None:
            return None

        def checked(*args: Any, **values: Any) -> str:
            check_method(value.__self__, "format", (*args, values))
            pay_for_method(current_budget(), value.__self__, "format", (*args, values))
            return made(*args, **values)

        return checked


class _LiteralsTraced(CodeGenerator):
    """Writes texts of the template as `Traced`, and concatenation so that it keeps marks."""

    environment: ChatEnvironment

    def _literal(self, text: str) -> str:
        self.environment.literals.append((Safe if hasattr(text, "__html__") else Traced).whole(str.__str__(text)))
        return f"environment.literals[{len(self.environment.literals) - 1}]"

    def visit_Const(self, node: nodes.Const, frame: Frame) -> None:  # noqa: N802 (jinja2's names)
        value = node.as_const(frame.eval_ctx)
        if isinstance(value, str):
            self.write(self._literal(value))
        else:
            super().visit_Const(node, frame)

    def visit_TemplateData(self, node: nodes.TemplateData, frame: Frame) -> None:  # noqa: N802
        self.write(self._literal(node.data))

    def _made(self, visit: Callable[[Any, Frame], None], node: nodes.Expr, frame: Frame) -> None:
        self.write(f"environment.filters[{MADE!r}](")
        visit(node, frame)
        self.write(")")

    def visit_List(self, node: nodes.List, frame: Frame) -> None:  # noqa: N802
        self._made(super().visit_List, node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:  # noqa: N802
        self._made(super().visit_Dict, node, frame)

    def visit_Tuple(self, node: nodes.Tuple, frame: Frame) -> None:  # noqa: N802
        if node.ctx == "load":
            self._made(super().visit_Tuple, node, frame)
        else:
            super().visit_Tuple(node, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:  # noqa: N802
        self.write("environment.concat(map(str, map(environment.finalize, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))))")

    def _output_const_repr(self, group: Iterable[Any]) -> str:
        return self._literal("".join(group))


ChatEnvironment.code_generator_class = _LiteralsTraced


class GenerationBlocks(Extension):
    """`{% generation %}...{% endgeneration %}`: what the assistant has written; rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        """Reads one block."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_render"), [], [], body).set_lineno(line)

    def _render(self, caller: Macro) -> str:
        return caller()


class _TemplateDict:
    """`dict(...)` and `dict.fromkeys(...)`, without the class and what hangs on it."""

    def __call__(self, *args: Any, **values: Any) -> dict[Any, Any]:
        return dict(*args, **values)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As dict's own."""
        return dict.fromkeys(*args)


class _TemplateNamespace(Namespace):
    """A namespace whose attributes do not begin with an underscore."""

    def __init__(*args: Any, **values: Any) -> None:  # "self" may be an attribute
        self, *given = args
        attributes = dict(*given, **values)
        for name in attributes:
            _check_attribute(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_attribute(name)
        super().__setitem__(name, value)


def _check_attribute(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace has no attributes that begin with an underscore, such as {name!r}")


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: int | None = None, separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:  # fmt: skip
    check_json_layout(indent, separators)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


@pass_environment
def _join(environment: ChatEnvironment, values: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
    """jinja2's `join`, which keeps marks."""
    found = values if attribute is None else map(make_attrgetter(environment, attribute), values)
    separator, texts = str(d), list(map(str, map(_put_out, found)))
    pay_for_method(current_budget(), separator, "join", (texts,))
    return (separator if isinstance(separator, Traced) else Traced(separator)).join(texts)


@pass_environment
def _sum(
    environment: ChatEnvironment, values: Iterable[Any], attribute: str | int | None = None, start: Any = 0
) -> Any:
    """jinja2's `sum`, each addition paid for: lists are copied by each."""
    found = values if attribute is None else map(make_attrgetter(environment, attribute), values)
    total = start
    for value in found:
        total = environment.call_binop(None, "+", total, value)
    return total


def _format(value: str, *args: Any, **values: Any) -> str:
    """jinja2's `format`: what `%` does."""
    check_operation("%", value, args)
    return str(value % (values or args))


def _escape(value: object) -> Safe:
    return Safe.escaped(value if isinstance(value, str) else str(value))


def _put_out(value: Any) -> Any:
    """A value that becomes text, paid for."""
    if not isinstance(value, str):
        current_budget().nested(value, texts=True)
    return value


def _raise_exception(message: object) -> None:
    raise RefusedError(str(message))
