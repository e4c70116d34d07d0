"""The variables and fields that a parsed template names, and the part of it that stands before the answer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ollama_engine.chat.go_template.nodes import (
    Action,
    Branch,
    Chain,
    Expression,
    Field,
    Invoke,
    Node,
    Pipe,
    PipeCommand,
    Variable,
)  # fmt: skip
from ollama_engine.chat.go_template.parser import ParsedTemplate

__all__ = ["identifiers", "up_to_response"]


def identifiers(parsed: ParsedTemplate) -> Iterator[str]:
    """Names of all fields and variables, without "$"."""
    for body in (parsed.body, *parsed.defined.values()):
        for node in body:
            yield from _of_node(node)


def _of_node(node: Node) -> Iterator[str]:
    if isinstance(node, (Action, Branch, Invoke)) and node.pipe is not None:
        yield from _of_pipe(node.pipe)
    if isinstance(node, Branch):
        for inner in (*node.body, *node.otherwise):
            yield from _of_node(inner)


def _of_pipe(pipe: Pipe) -> Iterator[str]:
    for command in pipe.commands:
        for word in command.words:
            yield from _of_word(word)


def _of_word(word: Expression) -> Iterator[str]:
    if isinstance(word, Field):
        yield from word.names
    elif isinstance(word, Variable):
        yield word.name.lstrip("$")
        yield from word.fields
    elif isinstance(word, Chain):
        yield from _of_pipe(word.pipe)
        yield from word.fields


def up_to_response(body: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes up to the first action that writes `.Response`, and none behind it, in all lists around it."""
    return _cut(body)[0]


def _cut(body: tuple[Node, ...]) -> tuple[tuple[Node, ...], bool]:
    """The nodes up to `.Response`, all without one; and whether it was found."""
    kept: list[Node] = []
    for node in body:
        if isinstance(node, Action) and _writes_response(node.pipe):
            return (*kept, node), True
        if isinstance(node, Branch):
            inner, found = _cut(node.body)
            otherwise, found_there = ((), True) if found else _cut(node.otherwise)
            kept.append(replace(node, body=inner, otherwise=otherwise))
            if found or found_there:
                return tuple(kept), True
        else:
            kept.append(node)
    return tuple(kept), False


def _writes_response(pipe: Pipe) -> bool:
    words = [word for command in pipe.commands for word in _words(command)]
    return any(isinstance(word, Field) and "Response" in word.names for word in words)


def _words(command: PipeCommand) -> Iterator[Expression]:
    for word in command.words:
        yield word
        if isinstance(word, Chain):
            for inner in word.pipe.commands:
                yield from _words(inner)
