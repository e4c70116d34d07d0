"""The parts of a parsed template, named as in Go's text/template/parse."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = [
    "Action",
    "Branch",
    "Chain",
    "Constant",
    "Expression",
    "Field",
    "Function",
    "If",
    "Invoke",
    "Jump",
    "Node",
    "Pipe",
    "PipeCommand",
    "Range",
    "TextNode",
    "Variable",
    "With",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Constant:
    """A number, a text, true, false or nil, as it stands in the template."""

    value: object


@dataclass(frozen=True, slots=True)
class Field:
    """`.A.B`: of the dot; `.` alone is the dot itself."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Variable:
    """`$x.A.B`; `$` is what the template was called with."""

    name: str
    fields: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Function:
    """A function's name."""

    name: str


@dataclass(frozen=True, slots=True)
class Chain:
    """`(pipe).A.B`."""

    pipe: Pipe
    fields: tuple[str, ...]


Expression = Constant | Field | Variable | Function | Chain


@dataclass(frozen=True, slots=True)
class PipeCommand:
    """A function and its arguments, or one value."""

    words: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Pipe:
    """Commands of which each is the last argument of the next.

    Attributes:
        commands: one at least.
        variables: what takes the value, "$x"; two of them in a range.
        assigns: whether the variables exist already (`=`, not `:=`).
    """

    commands: tuple[PipeCommand, ...]
    variables: tuple[str, ...] = ()
    assigns: bool = False


@dataclass(frozen=True, slots=True)
class TextNode:
    """Literal text."""

    text: str


@dataclass(frozen=True, slots=True)
class Action:
    """A pipe whose value is written, unless a variable takes it."""

    pipe: Pipe
    line: int


@dataclass(frozen=True, slots=True)
class Branch:
    """A pipe that decides which of two lists is written."""

    pipe: Pipe
    body: tuple[Node, ...]
    otherwise: tuple[Node, ...]
    line: int


class If(Branch):
    """`{{if}}`."""


class With(Branch):
    """`{{with}}`: the dot becomes the pipe's value."""


class Range(Branch):
    """`{{range}}`: the dot becomes one element after the other."""


@dataclass(frozen=True, slots=True)
class Jump:
    """`{{break}}` or `{{continue}}`."""

    word: str


@dataclass(frozen=True, slots=True)
class Invoke:
    """`{{template "name" pipe}}`."""

    name: str
    pipe: Pipe | None
    line: int


Node = TextNode | Action | Branch | Jump | Invoke
