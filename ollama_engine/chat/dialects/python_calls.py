"""Calls that are Python: [weather(city="Paris"), get_time()]."""

from __future__ import annotations

from dataclasses import dataclass

from ollama_engine.chat.dialects.answer import Answer, Call
from ollama_engine.chat.dialects.json_calls import JsonSection
from ollama_engine.chat.dialects.literals import PYTHON, escaped
from ollama_engine.chat.dialects.scanner import MalformedError, Reading, markers
from ollama_engine.chat.dialects.tool_grammar import Json, Members, Part, definitions_of
from ollama_engine.chat.dialects.tools import ToolDefinition

__all__ = ["PythonSection", "read_python_arguments", "read_python_call", "write_python_call"]


@dataclass(frozen=True)
class PythonSection:
    """A list of calls, or one call a line; a `Handler` of what follows a section's marker.

    end: the marker behind the calls; "" where the last bracket ends them.
    certain: whether the marker stands before calls only; where it does not, what calls no tool that was offered is
        content.
    printed: whether print(...) may stand around a call.
    """

    end: str = ""
    certain: bool = True
    printed: bool = False

    def __call__(self, answer: Answer) -> Reading[None]:
        yield from answer.skip_space()
        in_list = (yield from answer.accept("[")) is not None
        yield from answer.skip_space()
        if (yield from answer.peek()) == "{":  # the same models write JSON when they are told to
            yield from JsonSection(self.end, in_array=in_list).read(answer, certain=self.certain)
            return
        reading = _ListReading(self, answer, in_list)
        ends = markers(self.end, line_breaks=0) if self.end else None
        while reading.more:
            if not (yield from answer.call(reading.item, ends=ends, certain=self.certain or reading.count > 0)):
                return
            reading.count += 1
            answer.record()


class _ListReading:
    """A list of calls while it is read: whether another call comes."""

    def __init__(self, section: PythonSection, answer: Answer, in_list: bool) -> None:
        self._section = section
        self._answer = answer
        self._in_list = in_list
        self.count = 0
        self.more = True

    def item(self, call: Call) -> Reading[None]:
        """Read a call and what is between it and the next, or the end of all."""
        answer, section = self._answer, self._section
        yield from answer.skip_space()
        printed = section.printed and (yield from answer.accept("print("))
        yield from read_python_call(call)
        yield from answer.skip_space()
        if printed:
            yield from answer.expect(")")
            yield from answer.skip_space()
        if self._in_list:
            self.more = (yield from answer.expect(",", "]")) == ","
            yield from answer.skip_space()
        else:
            following = yield from answer.peek(max(len(section.end), 1))
            self.more = bool(section.end) and following not in ("", section.end)
        if not self.more and section.end:
            yield from answer.close(section.end)


def write_python_call(tool: ToolDefinition) -> list[Part]:
    """The parts of a call. Values are JSON: true, false and null are understood."""
    required, definitions = tool.parameters.get("required", ()), definitions_of(tool.parameters)
    items: list[tuple[list[Part], bool]] = [
        ([f"{key}=", Json({**schema, **definitions})], key in required)
        for key, schema in tool.parameters.get("properties", {}).items()
    ]
    return [f"{tool.name}(", Members(items, ", "), ")"]


def read_python_call(call: Call) -> Reading[None]:
    """Read a name and keyword arguments in parentheses."""
    answer = call.answer
    name = yield from answer.word()
    if not call.certain and name not in answer.tools:
        raise MalformedError(f"no tool {name!r} was offered")
    yield from answer.expect("(")
    call.begin(name)
    yield from read_python_arguments(call)


def read_python_arguments(call: Call) -> Reading[None]:
    """Read keyword arguments and the parenthesis behind them."""
    answer = call.answer
    call.arguments("{")
    yield from answer.skip_space()
    end = yield from answer.accept(")")
    separator = ""
    while end != ")":
        key = yield from answer.word("a keyword argument")
        yield from answer.skip_space()
        yield from answer.expect("=")
        yield from answer.skip_space()
        call.arguments(f'{separator}"{escaped(key)}": ')
        yield from PYTHON.read(answer, call.arguments)
        yield from answer.skip_space()
        end = yield from answer.expect(",", ")")
        separator = ", "
        if end == ",":
            yield from answer.skip_space()
            end = (yield from answer.accept(")")) or end
    call.arguments("}")
