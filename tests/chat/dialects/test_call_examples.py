"""The form of calls that a model is told is the one that its dialect's parser reads."""

from __future__ import annotations

import pytest

from ollama_engine.chat.dialects import DIALECTS, ToolDefinition, call_example
from ollama_engine.chat.events import ToolCallEnd

TOOL = ToolDefinition("NAME", {"type": "object", "properties": {"ARGUMENT": {"type": "string"}}})
WITHOUT = {"harmony", "muse", "minimax-m3", "text"}
"""Dialects whose calls are whole messages or depend on the schema, and one that has none."""


@pytest.mark.parametrize("name", sorted(DIALECTS.keys() - WITHOUT))
def test_an_example_is_a_call(name: str) -> None:
    dialect = DIALECTS[name]
    example = call_example(dialect)
    assert example is not None
    parser = dialect.parser(tools=[TOOL])
    events = [*parser.feed(example), *parser.finish()]
    calls = [event.call for event in events if isinstance(event, ToolCallEnd)]
    assert [(call.name, call.arguments) for call in calls] == [("NAME", {"ARGUMENT": "VALUE"})]


@pytest.mark.parametrize("name", sorted(WITHOUT))
def test_no_example(name: str) -> None:
    assert call_example(DIALECTS[name]) is None
