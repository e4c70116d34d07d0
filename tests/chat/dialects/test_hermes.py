"""Hermes, and the Qwen models that write calls alike."""

from __future__ import annotations

from ollama_engine.chat.dialects.hermes import HERMES
from tests.chat.dialects.reading import read

WEATHER = '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'


def test_reasoning_content_and_calls() -> None:
    answer = read(HERMES, f"<think>\nThey ask.\n</think>\n\nLet me look.\n{WEATHER}\n{TIME}")
    assert answer.reasoning == "They ask."
    assert answer.content == "Let me look."
    assert answer.named == [("weather", {"city": "Paris"}), ("get_time", {})]
    assert [call.id for call in answer.calls] == ["id0", "id1"]


def test_content_alone_is_untouched() -> None:
    for text in ("", "\n\n Hello <tool_cal> \n\n", "a < b\n", "{}", "so </think>"):
        assert read(HERMES, text).content == text


def test_the_prompt_opened_the_reasoning() -> None:
    answer = read(HERMES, f"They ask.</think>\n{WEATHER}", reasoning_open=True)
    assert (answer.reasoning, answer.content, len(answer.calls)) == ("They ask.", "", 1)
    assert read(HERMES, "<think>\nagain</think>so", reasoning_open=True).reasoning == "again"


def test_where_the_prompt_opens_the_reasoning() -> None:
    assert HERMES.reasoning_open("<|im_start|>assistant\n<think>\n")
    assert not HERMES.reasoning_open("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert not HERMES.reasoning_open("<|im_start|>assistant\n")


def test_an_empty_block_of_reasoning_says_nothing() -> None:
    answer = read(HERMES, "<think>\n\n</think>\n\nHello")
    assert (answer.reasoning, answer.content) == ("", "Hello")


def test_reasoning_that_never_ends() -> None:
    answer = read(HERMES, "<think>Hm, a <tool_call> would do. ")
    assert (answer.reasoning, answer.content) == ("Hm, a <tool_call> would do. ", "")


def test_a_call_inside_the_reasoning_ends_it() -> None:
    """Qwen does so; a marker that is only spoken of does not."""
    answer = read(HERMES, f"<think>Hm, a <tool_call>.\n{WEATHER}\n{TIME}")
    assert answer.reasoning == "Hm, a <tool_call>."
    assert [call.name for call in answer.calls] == ["weather", "get_time"]
    assert read(HERMES, f"<think>Hm {WEATHER}", tools=()).reasoning == f"Hm {WEATHER}"


def test_several_objects_or_an_array_between_one_pair_of_markers() -> None:
    weather, time = '{"name": "weather", "arguments": {"city": "Oslo"}}', '{"name": "get_time", "arguments": {}}'
    expected = [("weather", {"city": "Oslo"}), ("get_time", {})]
    assert read(HERMES, f"<tool_call>\n{weather}\n{time}\n</tool_call>").named == expected
    assert read(HERMES, f"<tool_call>[{weather}, {time}]</tool_call>").named == expected


def test_a_missing_end_marker() -> None:
    open_call = WEATHER.removesuffix("</tool_call>")
    assert read(HERMES, open_call).named == [("weather", {"city": "Paris"})]
    assert len(read(HERMES, f"{open_call}{TIME}").calls) == 2


def test_members_in_any_order_and_a_string_of_arguments() -> None:
    reversed_call = '<tool_call>{"arguments": {"b": 1, "a": 1.0}, "name": "weather"}</tool_call>'
    answer = read(HERMES, reversed_call)
    assert list(answer.calls[0].arguments) == ["b", "a"]
    assert answer.calls[0].arguments_text == '{"b": 1, "a": 1.0}'
    string = (
        r'<tool_call>{"name": "weather", "arguments": "{\"city\": \"\\ud83d\\ude00 \ud83d\ude00\\n\"}"}</tool_call>'
    )
    assert read(HERMES, string).named == [("weather", {"city": "😀 😀\n"})]


def test_line_breaks_inside_strings_come_out_escaped() -> None:
    answer = read(HERMES, '<tool_call>{"name": "weather", "arguments": {"city": "a\n\tb"}}</tool_call>')
    assert answer.calls[0].arguments == {"city": "a\n\tb"}
    assert answer.calls[0].arguments_text == r'{"city": "a\n\tb"}'


def test_numbers_keep_their_text() -> None:
    text = '{"a": 12345678901234567890, "b": 1e2, "c": 0.10}'
    answer = read(HERMES, f'<tool_call>{{"name": "weather", "arguments": {text}}}</tool_call>')
    assert answer.calls[0].arguments_text == text
    assert answer.calls[0].arguments == {"a": 12345678901234567890, "b": 100.0, "c": 0.1}


def test_without_tools_nothing_is_a_call() -> None:
    assert read(HERMES, f"So: {WEATHER}", tools=()).content == f"So: {WEATHER}"


def test_malformed_calls_come_back_as_text_with_a_reason() -> None:
    cases = {
        '{"name": "foo", "arguments": {}}': "no tool 'foo' was offered",
        '{"name": "weather", "arguments": {"a": tru}}': "expected true, false or null, got '}' in it",
        '{"name": "weather", "arguments": {"a": 1, "a": 2}}': "the key 'a' comes twice",
        '{"name": "weather", "name": "get_time"}': "the call has two members for its name; the second is 'name'",
        '{"name": "weather", "arguments": []}': "expected an object of arguments, got '['",
        '{"name": "weather", "arguments": {}} and': "expected '</tool_call>', got 'a'",
        '{"name": "weather", "mood": 1}': "a call has no member 'mood'",
        '{"arguments": {}}': "the call has no name",
        '{"name": 1}': "expected a string, got '1'",
        "weather()": "expected '{', got 'w'",
        "": "expected '{', got '<'",
    }
    for inside, reason in cases.items():
        text = f"<tool_call>{inside}</tool_call>"
        answer = read(HERMES, f"So {text} then {TIME}")
        assert [(call.text, call.reason) for call in answer.malformed] == [(text, reason)]
        assert (answer.content, answer.named) == ("So then ", [("get_time", {})])


def test_a_call_that_is_cut_off_is_malformed() -> None:
    text = '<tool_call>{"name": "weather", "arguments": {"ci'
    answer = read(HERMES, f"So {text}")
    assert answer.content == "So "
    assert [(call.text, call.reason, call.index) for call in answer.malformed] == [
        (text, "the answer ends inside a value", 0)
    ]


def test_deep_arguments_and_endless_integers_are_malformed() -> None:
    for value, reason in (("[" * 5000, "more than 100 arrays"), ("1" * 5000, "the arguments cannot be read")):
        text = f'<tool_call>{{"name": "weather", "arguments": {{"a": {value}}}}}</tool_call>'
        answer = read(HERMES, text)
        assert answer.malformed[0].text == text
        assert answer.malformed[0].reason.startswith(reason)
