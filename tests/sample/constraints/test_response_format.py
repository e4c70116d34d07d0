"""OpenAI's `response_format` as a format."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ollama_engine.errors import ConfigError, GrammarError
from tests.sample.constraints.accepting import accepts, matcher

SCHEMA = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}},
        {"type": "json_schema", "json_schema": {"name": "n", "description": "d", "strict": True, "schema": SCHEMA}},
        {"type": "json_schema", "name": "answer", "strict": True, "schema": SCHEMA},
        {"type": "json_object", "schema": SCHEMA},
    ],
    ids=["chat", "strict", "responses", "llama.cpp"],
)
def test_the_schema_inside_is_meant(given: Any) -> None:
    for each in (given, json.dumps(given)):
        made = matcher(each)
        assert accepts(made, '{"a":"x"}')
        assert not accepts(made, '{"b":"x"}')


def test_any_object() -> None:
    made = matcher({"type": "json_object"})
    assert accepts(made, '{"a":[1]}')
    assert not accepts(made, "[1]")


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_schema"},
        {"type": "json_schema", "json_schema": {"name": "answer"}},
        {"type": "json_schema", "json_schema": {"name": "answer", "schema": "x"}},
        {"type": "json_schema", "json_schema": None},
        {"type": "json_schema", "json_schema": SCHEMA},
        {"type": "json_schema", "json_schema": {"schema": SCHEMA}, "schema": SCHEMA},
        {"type": "json_object", "schema": None},
    ],
    ids=json.dumps,
)
def test_other_forms_say_what_is_expected(given: Any) -> None:
    with pytest.raises(ConfigError, match="format as a response_format is"):
        matcher(given)


def test_text_is_no_format() -> None:
    with pytest.raises(ConfigError, match="leave it out"):
        matcher({"type": "text"})


def test_a_fault_is_placed_in_the_schema_inside() -> None:
    with pytest.raises(GrammarError) as caught:
        matcher({"type": "json_schema", "json_schema": {"name": "n", "schema": {"properties": {"a": {"not": {}}}}}})
    assert caught.value.pointer == "/properties/a"
