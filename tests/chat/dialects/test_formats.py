"""Peculiarities of one dialect or another: forms that models mix up, values without quotes, broken calls."""

from __future__ import annotations

from typing import Any

import pytest

from ollama_engine.chat.dialects import ToolDefinition, named
from ollama_engine.chat.dialects.tagged_calls import types_of
from tests.chat.dialects.reading import read


def one_tool(**properties: Any) -> tuple[ToolDefinition, ...]:
    return (ToolDefinition("f", {"type": "object", "properties": properties}),)


# -- calls without a marker --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama3", "json", "gemma"])
def test_json_that_is_no_call_is_content(name: str) -> None:
    for text in (
        '{"city": "Paris", "name": "weather"}',
        '{"name": "Bob", "age": 3}',
        '{"name": "get_time"}',
        '{"name": "weather", "argu',
        "{not JSON}",
        "{",
        "[1, 2]",
        "[see above](link)",
        "  {}",
        "```json\n{}\n```",
        'Look: {"name": "get_time", "arguments": {}}',
    ):
        answer = read(named(name), text)
        assert (answer.content, answer.calls, answer.malformed) == (text, [], [])


@pytest.mark.parametrize("name", ["llama3", "json", "gemma"])
def test_json_that_must_be_a_call_is_malformed_when_it_is_none(name: str) -> None:
    cases = {
        '{"name": "Bob", "parameters": {}}': "no tool 'Bob' was offered",
        '{"name": "weather", "parameters": {"a": }}': "expected a value, got '}'",
        '{"parameters": {}, "name": "Bob"}': "no tool 'Bob' was offered",
    }
    for text, reason in cases.items():
        answer = read(named(name), text)
        assert [(call.text, call.reason) for call in answer.malformed] == [(text, reason)]
        assert answer.content == ""


def test_llama3_calls_in_a_row() -> None:
    call = '{"type": "function", "name": "get_time", "parameters": {}}'
    for text in (
        f"{call}; {call}",
        f"{call}\n{call}",
        f"<|python_tag|>{call};{call}",
        f"  {call} <|python_tag|> {call}",
    ):
        assert [found.name for found in read(named("llama3"), text).calls] == ["get_time", "get_time"]
    answer = read(named("llama3"), f"{call} and so on")
    assert (answer.content, len(answer.calls)) == ("and so on", 1)


def test_llama3_built_in_calls() -> None:
    answer = read(named("llama3"), '<|python_tag|>weather.call(city="Paris", days=3)')
    assert answer.named == [("weather", {"city": "Paris", "days": 3})]
    broken = read(named("llama3"), "<|python_tag|>print(1)").malformed[0]
    assert (broken.text, broken.reason) == ("<|python_tag|>print(1)", "no tool 'print' was offered")


# -- harmony -----------------------------------------------------------------------------------------------------------


def test_harmony_recipient_before_or_behind_the_channel() -> None:
    forms = (
        '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Oslo"}<|call|>',
        ' to=functions.weather<|channel|>commentary json<|message|>{"city": "Oslo"}',
        '<|channel|>analysis to=functions.weather code<|message|>{"city": "Oslo"}<|end|>',
        '<|start|>assistant<|channel|>commentary to=weather<|message|>\n{"city": "Oslo"}\n<|call|>',
    )
    for text in forms:
        answer = read(named("harmony"), text)
        assert (answer.named, answer.content) == ([("weather", {"city": "Oslo"})], "")


def test_harmony_messages_of_one_kind_are_a_line_break_apart() -> None:
    text = (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Three.<|return|>"
    )
    answer = read(named("harmony"), text)
    assert (answer.reasoning, answer.content) == ("One.\nTwo.", "Three.")


def test_harmony_without_channels_is_content() -> None:
    assert read(named("harmony"), "Plain to=you, <b>.").content == "Plain to=you, <b>."
    assert read(named("harmony"), "<|channel|>final").content == "<|channel|>final"


def test_harmony_malformed_call_is_followed_by_what_comes() -> None:
    text = "<|channel|>commentary to=functions.weather<|message|>Paris<|call|>"
    answer = read(named("harmony"), f"{text}<|start|>assistant<|channel|>final<|message|>So.")
    assert [(call.text, call.reason) for call in answer.malformed] == [
        (text, "expected an object of arguments, got 'P'")
    ]
    assert answer.content == "So."


# -- values without quotes ---------------------------------------------------------------------------------------------

TYPED = [
    ({"type": "string"}, "3", "3"),
    ({"type": "string"}, '{"a": 1}', '{"a": 1}'),
    ({"type": "string"}, ' two\n"lines" \\ ', ' two\n"lines" \\ '),
    ({"type": "string"}, "", ""),
    ({"type": "integer"}, "3", 3),
    ({"type": "integer"}, "three", "three"),
    ({"type": "number"}, "-2.5e3", -2500.0),
    ({"type": "boolean"}, "true", True),
    ({"type": "boolean"}, "True", True),
    ({"type": "null"}, "None", None),
    ({"type": ["string", "null"]}, "null", None),
    ({"type": ["string", "null"]}, "3", "3"),
    ({"type": ["integer", "string"]}, "3", 3),
    ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, "null", None),
    ({"enum": ["a", "1"]}, "1", "1"),
    ({"type": "array"}, '["a", {"b": [1, null]}]', ["a", {"b": [1, None]}]),
    ({"type": "array"}, "['a', True, None]", ["a", True, None]),
    ({"type": ["object", "null"]}, '{"a": "</parameter>"}', {"a": "</parameter>"}),
    ({"type": ["object", "null"]}, "null", None),
    ({"type": "object"}, '{"a": "</b>", "c": {}}', {"a": "</b>", "c": {}}),
    ({"$ref": "#/$defs/text"}, "3", "3"),
    ({}, "3", 3),
    ({}, "three", "three"),
    ({}, '{"a": 1}', {"a": 1}),
]


@pytest.mark.parametrize(("schema", "text", "value"), TYPED)
def test_the_schema_says_what_a_value_is(schema: Any, text: str, value: Any) -> None:
    tool = ToolDefinition("f", {"properties": {"a": schema}, "$defs": {"text": {"type": "string"}}})
    qwen = f"<tool_call>\n<function=f>\n<parameter=a>\n{text}\n</parameter>\n</function>\n</tool_call>"
    glm = f"<tool_call>f<arg_key>a</arg_key><arg_value>{text}</arg_value></tool_call>"
    minimax = f'<minimax:tool_call><invoke name="f"><parameter name="a">{text}</parameter></invoke></minimax:tool_call>'
    for name, answer in (("qwen3-coder", qwen), ("glm", glm), ("minimax-m2", minimax)):
        found = read(named(name), answer, tools=(tool,))
        assert found.named == [("f", {"a": value})], found


def test_the_answer_says_what_a_value_is() -> None:
    def call(attribute: str, text: str) -> str:
        return (
            '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="a" '
            f'string="{attribute}">{text}</｜DSML｜parameter></｜DSML｜invoke></｜DSML｜function_calls>'
        )

    dialect, tools = named("deepseek-v3.2"), one_tool(a={"type": "integer"})
    assert read(dialect, call("true", "3"), tools=tools).named == [("f", {"a": "3"})]
    assert read(dialect, call("false", "[1, 2]"), tools=tools).named == [("f", {"a": [1, 2]})]
    end = '{"b": "</｜DSML｜parameter>"}'
    assert read(dialect, call("false", end), tools=tools).named == [("f", {"a": {"b": "</｜DSML｜parameter>"}})]


def test_types_that_a_schema_does_not_say() -> None:
    assert types_of(True) is None
    assert types_of({"description": "anything"}) is None
    assert types_of({"anyOf": [{"type": "string"}, {}]}) is None
    assert types_of({"const": 1}) == {"integer"}


def test_broken_tagged_calls() -> None:
    cases = {
        "<function=f>\n<parameter=a>\n1\n</function>": "expected '</parameter>', but the answer ends",
        "<function=f>\n<parameter=b>\n[1\n</parameter>\n</function>": "expected ',' or ']', got '<'",
        "<function=f>\n<param=a>\n</function>": "expected '</function>', got '<'",
        "<function=>\n</function>": "expected a name, got '>'",
        "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n</function>": (
            "the key 'a' comes twice"
        ),
    }
    tools = one_tool(a={"type": "string"}, b={"type": "array"})
    for inside, reason in cases.items():
        text = f"<tool_call>\n{inside}"
        answer = read(named("qwen3-coder"), f"So {text}", tools=tools)
        assert [(call.text, call.reason) for call in answer.malformed] == [(text, reason)]
        assert answer.content == "So "


def test_minimax_m3_nests_elements() -> None:
    tag = "]<]minimax[>["
    place = f"{tag}<tags>{tag}<item>a{tag}</item>{tag}<item>3{tag}</item>{tag}</tags>{tag}<lat>4.5{tag}</lat>"
    text = f'{tag}<tool_call>{tag}<invoke name="f">{tag}<place>{place}{tag}</place>{tag}</invoke>{tag}</tool_call>'
    schema = {"type": "object", "properties": {"tags": {"type": "array", "items": {"type": "string"}}, "lat": {}}}
    expected = {"place": {"tags": ["a", "3"], "lat": 4.5}}
    assert read(named("minimax-m3"), text, tools=one_tool(place=schema)).named == [("f", expected)]


# -- Python ------------------------------------------------------------------------------------------------------------

LITERALS = [
    ("'a'", "a"),
    ('"a\'b"', "a'b"),
    ("'''a'b\n'''", "a'b\n"),
    ('"""a"b"""', 'a"b'),
    (r"'\x41\u0042\U00000043\n\'\\\q'", "ABC\n'\\\\q"),
    (r'"\ud83d\ude00\/"', "😀/"),
    ("''", ""),
    ("3", 3),
    ("-1_000", -1000),
    ("0x1F", 31),
    (".5", 0.5),
    ("1e3", 1000.0),
    ("True", True),
    ("none", None),
    ("None", None),
    ("[1, 'a', [], {},]", [1, "a", [], {}]),
    ("{'a': {'b': None}, \"c\": 1,}", {"a": {"b": None}, "c": 1}),
]


@pytest.mark.parametrize(("text", "value"), [case for case in LITERALS if case[0] != "none"])
def test_python_literals(text: str, value: Any) -> None:
    answer = read(named("lfm2"), f"<|tool_call_start|>[f( a = {text} , b=1 )]<|tool_call_end|>", tools=one_tool())
    assert answer.named == [("f", {"a": value, "b": 1})], answer


def test_what_is_no_python_literal_is_malformed() -> None:
    cases = {
        "f(a=x)": "expected a value, got 'x'",
        "f(1)": "expected '=', got ')'",
        "f('a')": 'expected a keyword argument, got "\'"',
        "f(a={1: 2})": "expected a key in quotes, got '1'",
        "f(a='\\xzz')": "expected 2 hexadecimal digits behind \\x",
        "f(a=(1, 2))": "expected a value, got '('",
        "f a": "expected '(', got ' '",
    }
    for inside, reason in cases.items():
        text = f"<|tool_call_start|>[{inside}]<|tool_call_end|>"
        answer = read(named("lfm2"), f"{text}So.", tools=one_tool())
        assert [(call.text, call.reason) for call in answer.malformed] == [(text, reason)]
        assert answer.content == "So."


def test_code_that_calls_no_tool_is_content() -> None:
    for text in ("<code>x = 1</code>", "<code></code>", "<code>print(1)</code>"):
        answer = read(named("smollm3"), f"See {text}.")
        assert (answer.content, answer.calls, answer.malformed) == (f"See {text}.", [], [])


# -- others ------------------------------------------------------------------------------------------------------------


def test_calls_without_an_end_of_the_reasoning() -> None:
    """The marker of a call is a control token there, which no reasoning mentions."""
    text = "<think>Hm.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_time:3<|tool_call_argument_begin|>{}"
    answer = read(named("kimi-k2"), text)
    assert (answer.reasoning, answer.calls[0].id) == ("Hm.", "functions.get_time:3")


def test_mistral_writes_both_formats_in_either_dialect() -> None:
    for name in ("mistral", "mistral-tekken"):
        for text in ('[TOOL_CALLS] [{"name": "get_time", "arguments": {}}]', "[TOOL_CALLS]get_time[ARGS]{}"):
            assert read(named(name), text).named == [("get_time", {})]
        assert read(named(name), "<think>Hm.</think>So.").reasoning == "Hm."


def test_functionary_says_things_before_and_behind_calls() -> None:
    answer = read(named("functionary-v3.2"), "all\nLet me look.\n>>>get_time\n{}>>>all\nSo.")
    assert (answer.content, answer.named) == ("Let me look.So.", [("get_time", {})])
    assert read(named("functionary-v3.2"), "just text\nand more").content == "just text\nand more"


def test_one_malformed_call_of_several_leaves_the_others() -> None:
    array = '[{"name": "get_time", "arguments": {}}, {"name": "x", "arguments": {}}, {"name": "get_time"}]'
    answer = read(named("phi4"), f"<|tool_call|>{array}<|/tool_call|>")
    assert [call.reason for call in answer.malformed] == ["no tool 'x' was offered"]
    assert len(answer.calls) == 2
