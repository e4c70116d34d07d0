"""Evaluator: writes a parsed template with its values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jinja2.exceptions import SecurityError

from ollama_engine.chat.budget import Budget, size_of
from ollama_engine.chat.go_template import nodes as tree
from ollama_engine.chat.go_template.functions import LAZY
from ollama_engine.chat.go_template.parser import ParsedTemplate
from ollama_engine.chat.go_template.values import ABSENT, TemplateRecord, is_true, kind_of, printed
from ollama_engine.chat.provenance import Traced, joined
from ollama_engine.errors import ChatError

__all__ = ["Evaluator"]

MAX_DEPTH = 100
"""Templates that may invoke each other."""


class _Loop(Exception):  # noqa: N818 (no error: it leaves the body of a range)
    def __init__(self, word: str) -> None:
        self.word = word


class Evaluator:
    """One rendering.

    Args:
        template: the template to execute.
        functions: by name.
        data: the dot, and `$`.

    Texts of the template are trusted (see `provenance`), those of `data` as they are. Its nodes, and all texts that it
    writes and gives to functions, are paid for by a `Budget`: one request may bring its own template.
    """

    def __init__(self, template: ParsedTemplate, functions: Mapping[str, Callable[..., Any]], data: Any) -> None:
        self._template = template
        self._functions = functions
        self._variables: list[tuple[str, Any]] = [("$", data)]
        self._written: list[str] = []
        self._budget = Budget(size_of(data))
        self._depth = 0
        self._line = 1

    def text(self) -> str:
        """Executes the template. Raises ChatError with the line that fails."""
        try:
            self._write(self._template.body, self._variables[0][1])
        except (ChatError, SecurityError) as error:
            raise ChatError(f"the chat template fails, line {self._line}: {error}") from None
        return joined(self._written)

    # -- nodes ---------------------------------------------------------------------------------------------------------

    def _write(self, nodes: tuple[tree.Node, ...], dot: Any) -> None:
        for node in nodes:
            self._budget.step()
            self._write_node(node, dot)

    def _write_node(self, node: tree.Node, dot: Any) -> None:
        if isinstance(node, tree.TextNode):
            self._put(Traced.whole(node.text))
            return
        if isinstance(node, tree.Jump):
            raise _Loop(node.word)
        self._line = node.line
        if isinstance(node, tree.Action):
            value = self._pipe(node.pipe, dot)
            if not node.pipe.variables:
                self._put(printed(value))
        elif isinstance(node, tree.Invoke):
            self._invoke(node, dot)
        elif isinstance(node, tree.Range):
            self._range(node, dot)
        else:
            self._if_or_with(node, dot)

    def _put(self, text: str) -> None:
        self._budget.read(text)
        self._written.append(text)

    def _if_or_with(self, node: tree.If | tree.With | Any, dot: Any) -> None:
        known = len(self._variables)
        value = self._pipe(node.pipe, dot)
        if is_true(value):
            self._write(node.body, value if isinstance(node, tree.With) else dot)
        else:
            self._write(node.otherwise, dot)
        del self._variables[known:]

    def _range(self, node: tree.Range, dot: Any) -> None:
        known = len(self._variables)
        empty = True
        for pair in _pairs(self._pipe(node.pipe, dot, declares=False)):
            empty = False
            self._budget.step()
            self._take(node.pipe, pair)
            inside = len(self._variables)
            try:
                self._write(node.body, pair[1])
            except _Loop as jump:
                if jump.word == "break":
                    break
            finally:
                del self._variables[inside:]
            if not node.pipe.assigns:
                del self._variables[known:]
        del self._variables[known:]
        if empty:
            self._write(node.otherwise, dot)

    def _take(self, pipe: tree.Pipe, pair: tuple[Any, Any]) -> None:
        """Give a range's variables their values: one has the element, two have its place or key as well."""
        for name, value in zip(pipe.variables, pair[-len(pipe.variables) :] if pipe.variables else (), strict=True):
            self._set(name, value, assigns=pipe.assigns)

    def _invoke(self, node: tree.Invoke, dot: Any) -> None:
        body = self._template.defined.get(node.name)
        if body is None:
            raise ChatError(f"there is no template {node.name!r}")
        value = None if node.pipe is None else self._pipe(node.pipe, dot)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ChatError(f"more than {MAX_DEPTH} templates invoke each other")
        outer, self._variables = self._variables, [("$", value)]
        self._write(body, value)
        self._variables = outer
        self._depth -= 1

    # -- values --------------------------------------------------------------------------------------------------------

    def _pipe(self, pipe: tree.Pipe, dot: Any, *, declares: bool = True) -> Any:
        value: Any = ABSENT
        for number, command in enumerate(pipe.commands):
            value = self._command(command, dot, (value,) if number else ())
        if declares:
            for name in pipe.variables:
                self._set(name, value, assigns=pipe.assigns)
        return value

    def _set(self, name: str, value: Any, *, assigns: bool) -> None:
        if assigns:
            at = next(at for at in reversed(range(len(self._variables))) if self._variables[at][0] == name)
            self._variables[at] = (name, value)
        else:
            self._variables.append((name, value))

    def _command(self, command: tree.PipeCommand, dot: Any, last: tuple[Any, ...]) -> Any:
        first, *others = command.words
        if isinstance(first, tree.Function):
            return self._call(first.name, others, dot, last)
        if isinstance(first, tree.Constant) and first.value is None and not others:
            raise ChatError("nil is no command")
        if others or last:
            raise ChatError("a value that is no function is given arguments")
        return self._value(first, dot)

    def _call(self, name: str, words: list[tree.Expression], dot: Any, last: tuple[Any, ...]) -> Any:
        if name in LAZY:
            later = [lambda word=word: self._value(word, dot) for word in words]
            return LAZY[name]([*later, *(lambda value=value: value for value in last)])
        arguments = [*(self._value(word, dot) for word in words), *last]
        for argument in arguments:
            self._budget.read(argument)
        try:
            return self._budget.made(self._functions[name](*arguments))
        except TypeError as error:
            raise ChatError(f"{name} cannot take these arguments: {error}") from None

    def _value(self, word: tree.Expression, dot: Any) -> Any:
        if isinstance(word, tree.Constant):
            return Traced.whole(word.value) if isinstance(word.value, str) else word.value
        if isinstance(word, tree.Field):
            return self._fields(dot, word.names)
        if isinstance(word, tree.Variable):
            return self._fields(
                next(value for name, value in reversed(self._variables) if name == word.name), word.fields
            )
        if isinstance(word, tree.Chain):
            return self._fields(self._pipe(word.pipe, dot), word.fields)
        return self._call(word.name, [], dot, ())

    def _fields(self, value: Any, names: tuple[str, ...]) -> Any:
        for name in names:
            value = _field(value, name)
        return value


def _field(value: Any, name: str) -> Any:
    if isinstance(value, TemplateRecord):
        if name not in value:
            raise ChatError(f"there is no field {name}; it has {', '.join(value)}")
        return value[name]
    if isinstance(value, Mapping):
        return value.get(name, ABSENT)
    if value is None or value is ABSENT:
        raise ChatError(f"{name} is asked of nothing")
    raise ChatError(f"{name} is asked of {kind_of(value)}")


def _pairs(value: Any) -> Iterator[tuple[Any, Any]]:
    """(place or key, element) of what a range goes through."""
    if isinstance(value, Mapping) and not isinstance(value, TemplateRecord):
        return iter([(key, value[key]) for key in sorted(value)])
    if isinstance(value, (list, tuple)):
        return enumerate(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return ((number, number) for number in range(value))
    if value is None or value is ABSENT:
        return iter(())
    raise ChatError(f"it cannot range over {kind_of(value)}")
