"""Options of a chat that contradict each other, or the request they are for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from ollama_engine import ChatResult, Choice, Engine, Lark, Regex, SamplingParams, demo
from ollama_engine.errors import (
    ChatError,
    ConfigError,
    GrammarError,
    IncompleteError,
    TokenizerError,
    UnsupportedInputError,
)
from ollama_engine.segments import Media, Text, Tokens

GREEDY = SamplingParams(temperature=0, max_tokens=40)
HELLO = [{"role": "user", "content": "Tell me of Lily."}]
SCHEMA: dict[str, Any] = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"],
                          "additionalProperties": False}  # fmt: skip
CLOCK = {"name": "clock", "parameters": {"type": "object", "properties": {}, "additionalProperties": False}}


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=512, threads=1) as engine:
        yield engine


# -- a forced call -----------------------------------------------------------------------------------------------------


def test_no_stop_text_cuts_a_forced_call_which_has_no_value(engine: Engine) -> None:
    forced: Any = {"tools": [CLOCK], "tool_choice": "required", "dialect": "hermes", "parallel_tool_calls": False}
    params = SamplingParams(temperature=1.5, max_tokens=150, seed=1, stop=['"', "clock"])
    assert [call.name for call in engine.chat(HELLO, params, **forced).tool_calls] == ["clock"]
    with pytest.raises(ConfigError, match="without"):
        assert engine.chat(HELLO, GREEDY, **forced).parsed


# -- a format and tools ------------------------------------------------------------------------------------------------


def answers_in(engine: Engine, answer_format: Any, **options: Any) -> list[ChatResult]:
    return [
        engine.chat(HELLO, SamplingParams(temperature=1.5, max_tokens=150, seed=seed), format=answer_format, **options)
        for seed in range(12)
    ]


@pytest.mark.parametrize("dialect", ["hermes", "muse", "qwen3-coder", "gemma4"])
def test_with_a_format_and_tools_an_answer_is_calls_or_a_value(engine: Engine, dialect: str) -> None:
    found = [
        answer
        for answer in answers_in(engine, SCHEMA, tools=[CLOCK], parallel_tool_calls=False, dialect=dialect)
        if answer.finish_reason != "length"
    ]
    called = [answer for answer in found if answer.tool_calls]
    assert 0 < len(called) < len(found)
    for answer in found:
        if answer.tool_calls:
            assert (answer.finish_reason, answer.content, answer.malformed_tool_calls) == ("tool_calls", "", ())
            with pytest.raises(IncompleteError, match="it calls tools and waits for their results; send them"):
                print(answer.parsed)
        else:
            assert answer.finish_reason == "stop"
            assert answer.parsed in ({"a": "x"}, {"a": "y"})


@pytest.mark.parametrize("dialect", ["hermes", "qwen3-coder"])
@pytest.mark.parametrize("zone", [{"not": {"type": "null"}}, {"type": "string", "pattern": "(?=not)"}], ids=str)
def test_a_tool_whose_schema_cannot_be_enforced_is_called_with_any_arguments(
    engine: Engine, dialect: str, zone: dict[str, Any]
) -> None:
    """As without a format: nobody forces its call."""
    tool = {"name": "clock", "parameters": {"type": "object", "properties": {"zone": zone}}}
    options: Any = {"tools": [tool], "dialect": dialect, "parallel_tool_calls": False}
    found = [answer for answer in answers_in(engine, SCHEMA, **options) if answer.finish_reason != "length"]
    assert any(not answer.tool_calls and answer.parsed["a"] in ("x", "y") for answer in found)
    with pytest.raises((ConfigError, GrammarError), match=r"clock.*not"):
        engine.chat(HELLO, GREEDY, tool_choice="required", **options)


@pytest.mark.parametrize(("answer_format", "values"), [
    (Choice(["yes", "no"]), {"yes", "no"}), (Regex("[01]/[01]"), {"0/0", "0/1", "1/0", "1/1"}),
    (Literal["yes", "no"], {"yes", "no"}),
], ids=["Choice", "Regex", "Literal"])  # fmt: skip
def test_other_formats_beside_tools(engine: Engine, answer_format: object, values: set[str]) -> None:
    pytest.importorskip("pydantic")
    found = answers_in(engine, answer_format, tools=[CLOCK], dialect="hermes", parallel_tool_calls=False)
    said = {answer.parsed for answer in found if answer.finish_reason == "stop"}
    assert said
    assert said <= values


@pytest.mark.parametrize("choice", ["required", "clock"])
def test_a_forced_call_comes_before_the_value(engine: Engine, choice: str) -> None:
    options: Any = {"tools": [CLOCK], "tool_choice": choice, "dialect": "hermes", "parallel_tool_calls": False}
    found = engine.chat(HELLO, SamplingParams(temperature=1.5, max_tokens=150, seed=1), format=SCHEMA, **options)
    assert [call.name for call in found.tool_calls] == ["clock"]


def test_a_dialect_without_calls_has_the_format_alone(engine: Engine) -> None:
    assert engine.chat(HELLO, GREEDY, tools=[CLOCK], format=SCHEMA, dialect="text").parsed in ({"a": "x"}, {"a": "y"})


def test_a_grammar_is_not_for_an_answer_that_may_be_a_call(engine: Engine) -> None:
    options: Any = {"tools": [CLOCK], "format": Lark('start: "a"'), "dialect": "hermes"}
    with pytest.raises(
        ConfigError, match=r'format is a grammar, .* leave one of them out, pass tool_choice="none", or'
    ):
        engine.chat(HELLO, GREEDY, **options)
    with pytest.raises(ConfigError, match="leave one of them out"):
        asyncio.run(engine.achat(HELLO, GREEDY, **options))


def test_a_named_tool_is_called_once_unless_the_caller_says_otherwise(engine: Engine) -> None:
    options: Any = {"tools": [CLOCK], "dialect": "json"}
    params = SamplingParams(temperature=0, max_tokens=200, logit_bias=dict.fromkeys(engine.tokenize("\n"), 20))

    def calls(**more: Any) -> int:
        return len(engine.chat(HELLO, params, **options, **more).tool_calls)

    assert calls(tool_choice="clock") == 1
    assert calls(tool_choice="clock", parallel_tool_calls=True) > 1
    assert calls(tool_choice="required") > 1
    assert calls(tool_choice="required", parallel_tool_calls=False) == 1


@pytest.mark.parametrize("options", [{"tools": [CLOCK], "tool_choice": "none"}, {"tools": []}, {}], ids=str)
def test_a_format_where_no_tool_can_be_called(engine: Engine, options: dict[str, Any]) -> None:
    found = engine.chat(HELLO, GREEDY, format=SCHEMA, dialect="hermes", **options)
    assert found.parsed in ({"a": "x"}, {"a": "y"})
    assert found.tool_calls == ()


# -- which tool --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["auto", "none", "required"])
def test_a_dict_names_a_tool_though_its_name_is_a_keyword(engine: Engine, name: str) -> None:
    choice: Any = {"type": "function", "function": {"name": name}}
    options: Any = {"tools": [CLOCK, {**CLOCK, "name": name}], "dialect": "hermes", "parallel_tool_calls": False}
    found = engine.chat(HELLO, SamplingParams(temperature=1.5, max_tokens=120, seed=1), tool_choice=choice, **options)
    assert [call.name for call in found.tool_calls] == [name]
    with pytest.raises(ConfigError, match=rf"one of the tools \(clock\), got '{name}'"):
        engine.chat(HELLO, GREEDY, tools=[CLOCK], tool_choice=choice, dialect="hermes")
    with pytest.raises(ConfigError, match="there are no tools"):
        engine.chat(HELLO, GREEDY, tool_choice=choice, dialect="hermes")


WRONG = {"name": "g", "parameters": {"type": "object", "properties": {"a": {"type": "strin"}}}}
OTHER = {"name": "h", "parameters": {"type": "object", "properties": {"b": {"type": "numbr"}}}}


@pytest.mark.parametrize(("choice", "told", "pointer"), [
    ("required", r"tools\[1\] \(g\): .*strin", "/properties/a"), ("h", r"tools\[2\] \(h\): .*numbr", "/properties/b"),
])  # fmt: skip
@pytest.mark.parametrize("dialect", ["hermes", "qwen3-coder"])
def test_a_refused_schema_names_its_tool(engine: Engine, choice: str, told: str, pointer: str, dialect: str) -> None:
    options: Any = {"tools": [CLOCK, WRONG, OTHER], "tool_choice": choice, "dialect": dialect}
    with pytest.raises(GrammarError, match=told) as raised:
        engine.chat(HELLO, GREEDY, **options)
    assert raised.value.pointer == pointer
    with pytest.raises(GrammarError, match=told):
        asyncio.run(engine.achat(HELLO, GREEDY, **options))


# -- what templates read -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["messages", "tools", "documents", "add_generation_prompt"])
def test_variables_that_the_chat_sets(engine: Engine, name: str) -> None:
    with pytest.raises(ConfigError, match=f"template_variables has '{name}', which the chat sets itself; pass "):
        engine.apply_template(HELLO, template_variables={name: []})


@pytest.mark.parametrize(("documents", "told"), [
    ("foo", "documents: expected a list of dicts .* got str"), ({"text": "a"}, "documents: .* got dict"),
    (5, "documents: .* got int"), (["foo"], r"documents\[0\]: expected a dict"),
], ids=str)  # fmt: skip
def test_documents_that_are_none(engine: Engine, documents: Any, told: str) -> None:
    with pytest.raises(ChatError, match=told):
        engine.apply_template(HELLO, documents=documents)


def test_documents(engine: Engine) -> None:
    template = "{% for document in documents or [] %}{{ document.title }}: {{ document.text }}{% endfor %}"
    segments: Any = engine.apply_template(HELLO, template=template, documents=({"title": "T", "text": "x"},))
    assert "".join(segment.text for segment in segments) == "T: x"
    assert engine.apply_template(HELLO, template=template, documents=[]) == []


@pytest.mark.parametrize(("field", "told"), [
    ({"id": 5}, "'id', which is no text, but int"), ({"id": [5]}, "none of its parts is a text"),
    ({"id": [{"text": 5}]}, "none of its parts is a text"),
], ids=str)  # fmt: skip
def test_going_on_with_what_is_no_text(engine: Engine, field: dict[str, Any], told: str) -> None:
    with pytest.raises(ChatError, match=told):
        engine.apply_template(
            [*HELLO, {"role": "assistant", "content": "x", **field}], continue_final_message="id",
            template="{{ messages[1].id }}",
        )  # fmt: skip


# -- token ids ---------------------------------------------------------------------------------------------------------


def test_segments_have_the_ids_that_a_request_has(engine: Engine) -> None:
    segments = engine.apply_template(HELLO)
    found = engine.tokenize(segments)
    assert engine.chat(HELLO, GREEDY).usage.prompt_tokens == len(found)
    assert engine.generate(found, GREEDY).text == engine.generate(segments, GREEDY).text
    assert engine.tokenize([Tokens([5, 6]), Text("a")]) == [5, 6, *engine.tokenize("a", add_special=False)]
    assert engine.tokenize([]) == []
    with pytest.raises(UnsupportedInputError, match="an image has no token ids; leave it out"):
        engine.tokenize([Text("a"), Media(b"x")])


def test_a_context_stands_before_the_conversation(engine: Engine) -> None:
    """It is what another conversation was: its prompt, and its answer."""
    first = engine.chat(HELLO, GREEDY)
    context = [*engine.tokenize(engine.apply_template(HELLO)), *first.tokens]
    again = [{"role": "user", "content": "And then?"}]
    found = engine.chat(again, GREEDY, context=context)
    assert found.usage.prompt_tokens == len(context) + len(engine.tokenize(engine.apply_template(again)))
    assert found.usage.cached_tokens >= len(context) - 1
    prompt = [Tokens(context), *engine.apply_template(again)]
    assert found.tokens == engine.generate(prompt, GREEDY).tokens
    with pytest.raises(TokenizerError):
        engine.chat(again, GREEDY, context=[10**9])
