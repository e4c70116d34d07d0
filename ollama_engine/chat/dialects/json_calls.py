"""Calls that are JSON objects: {"name": "weather", "arguments": {"city": "Paris"}}, alone or in arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ollama_engine.chat.dialects.answer import Answer, Call
from ollama_engine.chat.dialects.json_scanner import JsonScanner, StringDecoder, read_string
from ollama_engine.chat.dialects.scanner import ENDS, MalformedError, Reading, ignore, markers
from ollama_engine.chat.dialects.tool_grammar import Json, Part, object_schema
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["CALL", "CallKeys", "JsonSection", "read_arguments", "read_call", "write_object"]


@dataclass(frozen=True)
class CallKeys:
    """Keys of the members of a call's object.

    name, arguments, id: the keys of these; each once at most.
    other: keys whose values say nothing that a caller needs, such as "type": "function".
    """

    name: Sequence[str] = ("name",)
    arguments: Sequence[str] = ("arguments", "parameters")
    id: Sequence[str] = ("id",)
    other: Sequence[str] = ("type",)

    def role(self, key: str) -> str:
        """The attribute that lists this key. Raises MalformedError for another key."""
        for role in ("name", "arguments", "id", "other"):
            if key in getattr(self, role):
                return role
        raise MalformedError(f"a call has no member {key!r}")


CALL = CallKeys()


@dataclass(frozen=True)
class JsonSection:
    """One object, several, or an array of them; a `Handler` of what follows a section's marker.

    end: the marker behind the calls; "" where the last bracket ends them. A model that stops before it, or that begins
        the next section without it, is understood.
    begin: the marker of the next section.
    keys: the members of a call's object.
    separator: text that may stand between two calls outside of an array.
    in_array: the marker holds the array's bracket.
    """

    end: str = ""
    begin: str = ""
    keys: CallKeys = CALL
    separator: str = ""
    in_array: bool = False

    def __call__(self, answer: Answer) -> Reading[None]:
        yield from self.read(answer)

    def read(self, answer: Answer, *, certain: bool = True) -> Reading[None]:
        """Read all calls. Malformed text reaches to the marker behind the calls, or to the answer's end."""
        yield from answer.skip_space()
        reading = _SectionReading(self, answer, self.in_array or (yield from answer.accept("[")) is not None)
        ends = markers(self.end, line_breaks=0) if self.end else None
        while reading.more:
            if not (yield from answer.call(reading.item, ends=ends, certain=certain)):
                return
            certain = True
            answer.record()


class _SectionReading:
    """A section while it is read: whether inside an array, and whether another call comes."""

    def __init__(self, section: JsonSection, answer: Answer, in_array: bool) -> None:
        self._section = section
        self._answer = answer
        self._in_array = in_array
        self.more = True

    def item(self, call: Call) -> Reading[None]:
        """Read an object and what is between it and the next, or the end of all."""
        answer, section = self._answer, self._section
        yield from read_call(call, section.keys)
        yield from answer.skip_space()
        if self._in_array:
            self._in_array = (yield from answer.expect(",", "]")) == ","
            if self._in_array:
                return
            yield from answer.skip_space()
        elif section.separator and (yield from answer.accept(section.separator)):
            yield from answer.skip_space()
        self.more = (yield from answer.peek()) == "{"
        if not self.more and section.end:
            yield from answer.close(section.end, section.begin)


def write_object(name_key: str = "name", arguments_key: str = "arguments") -> Callable[[ToolDefinition], list[Part]]:
    """Writes a call as an object of these two members."""

    def write(tool: ToolDefinition) -> list[Part]:
        begin = f'{{"{name_key}": {json.dumps(tool.name)}, "{arguments_key}": '
        return [begin, Json(object_schema(tool)), "}"]

    return write


def read_call(call: Call, keys: CallKeys = CALL) -> Reading[None]:
    """Read one call's object. The call begins where both its name and the key of its arguments are known."""
    answer = call.answer
    members = _Members(call, keys)
    yield from answer.skip_space()
    yield from answer.expect("{")
    yield from answer.skip_space()
    end = yield from answer.accept("}")
    while end != "}":
        yield from answer.skip_space()
        key = yield from read_string(answer)
        yield from answer.skip_space()
        yield from answer.expect(":")
        yield from answer.skip_space()
        yield from members.read(key)
        yield from answer.skip_space()
        end = yield from answer.expect(",", "}")
    members.begin()


class _Members:
    """The members of a call's object that have been read."""

    def __init__(self, call: Call, keys: CallKeys) -> None:
        self._call = call
        self._keys = keys
        self._seen: set[str] = set()
        self._name: str | None = None
        self._id: str | None = None
        self._begun = False

    def read(self, key: str) -> Reading[None]:
        """Read the value of a key."""
        role, answer = self._keys.role(key), self._call.answer
        if role in self._seen and role != "other":
            raise MalformedError(f"the call has two members for its {role}; the second is {key!r}")
        self._seen.add(role)
        if role == "name":
            self._name = yield from read_string(answer)
        elif role == "id":
            self._id = yield from _read_id(answer)
        elif role == "other":
            yield from answer.value(JsonScanner(), ignore)
        if {"name", "arguments"} <= self._seen:
            self.begin()
        if role == "arguments":
            yield from read_arguments(self._call)

    def begin(self) -> None:
        """Begin the call with the name and the id that were read, if it has not begun."""
        if self._name is None or not (self._call.certain or "arguments" in self._seen):
            raise MalformedError(f"the call has no {'name' if self._name is None else 'arguments'}")
        if not self._begun:
            self._begun = True
            self._call.begin(self._name, self._id)


def _read_id(answer: Answer) -> Reading[str]:
    """Read an id: a string, or a number as its text."""
    if (yield from answer.peek()) == '"':
        return (yield from read_string(answer))
    pieces: list[str] = []
    yield from answer.value(JsonScanner(), pieces.append)
    return "".join(pieces)


def read_arguments(call: Call) -> Reading[None]:
    """Read white space and the object of arguments, or a string that holds it as JSON."""
    answer = call.answer
    yield from answer.skip_space()
    if (yield from answer.peek()) != '"':
        yield from _read_object(call)
        return
    inside = JsonScanner()
    decoder = StringDecoder()

    def take(piece: str) -> None:
        text = decoder.decode(piece)
        end, read = inside.scan(text, 0)
        call.arguments(read)
        if inside.problem is not None or text[end:].strip():
            raise MalformedError(f"the arguments' text: {inside.problem or 'more than one value'}")

    yield from answer.value(JsonScanner(), take)
    if not inside.done:
        raise MalformedError("the arguments' text ends inside a value")


def _read_object(call: Call) -> Reading[None]:
    """Read the object of arguments."""
    character = yield from call.answer.peek()
    if character != "{":
        raise MalformedError(f"expected an object of arguments, got {character!r}" if character else ENDS)
    yield from call.answer.value(JsonScanner(), call.arguments)
