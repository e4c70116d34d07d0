"""Rules that hold in every dialect, on an answer in each."""

from __future__ import annotations

import re

import pytest

from ollama_engine.chat.dialects import DIALECTS, detect, named
from ollama_engine.chat.events import ContentDelta, MalformedToolCall, ReasoningDelta, ToolCallDelta
from ollama_engine.errors import ClosedError, ConfigError
from tests.chat.dialects.examples import EXAMPLES, OTHER_FORMS
from tests.chat.dialects.reading import TOOLS, events, joined, read, summed

CALLS = [("weather", {"city": "Paris", "days": 3}), ("get_time", {})]
LONGEST_MARKER = 60


def test_every_dialect_has_an_example() -> None:
    assert set(EXAMPLES) == set(DIALECTS)


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_answer_is_read(name: str) -> None:
    text = EXAMPLES[name]
    answer = read(named(name), text)
    assert answer.content == ("Let me look." if "Let me look." in text else "")
    assert answer.reasoning == ("They ask." if "They ask." in text else "")
    assert answer.named == ([] if name == "text" else CALLS)
    assert not answer.malformed


@pytest.mark.parametrize(("name", "text"), OTHER_FORMS)
def test_other_forms_are_read(name: str, text: str) -> None:
    answer = read(named(name), text)
    assert (answer.content, answer.reasoning, answer.named) == ("", "", CALLS)
    assert not answer.malformed


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_reasoning_that_the_prompt_opened(name: str) -> None:
    dialect = named(name)
    for begin, _ in dialect.thinking:
        if EXAMPLES[name].startswith(begin):
            prompt = f"<|im_start|>assistant\n{begin}"
            assert dialect.reasoning_open(prompt)
            assert dialect.reasoning_open(prompt + "\n")
            assert not dialect.reasoning_open(EXAMPLES[name])
            answer = read(dialect, EXAMPLES[name].removeprefix(begin), reasoning_open=True)
            assert answer == read(dialect, EXAMPLES[name])
            return
    assert "They ask." not in EXAMPLES[name]


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_without_tools_nothing_is_a_call(name: str) -> None:
    answer = read(named(name), EXAMPLES[name], tools=())
    assert not answer.calls
    assert answer.reasoning == ("They ask." if "They ask." in EXAMPLES[name] else "")
    said = answer.content + "".join(call.text for call in answer.malformed)
    assert "Paris" in said or name == "text"


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"text"}))
def test_a_tool_that_was_not_offered(name: str) -> None:
    answer = read(named(name), EXAMPLES[name].replace("weather", "whether"))
    assert [call.reason for call in answer.malformed] == ["no tool 'whether' was offered"]
    assert "whether" in answer.malformed[0].text
    assert "Paris" in answer.malformed[0].text
    assert answer.named == CALLS[1:], "the next call is read"


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_answer_that_is_cut_anywhere_loses_nothing(name: str) -> None:
    """The events before the cut, as far as certain, begin those of the whole answer."""
    dialect, text = named(name), EXAMPLES[name]
    whole = read(dialect, text)
    for end in range(len(text)):
        answer = summed(joined(events(dialect, [text[:end]])))
        assert whole.reasoning.startswith(answer.reasoning) or text[:end].endswith(answer.reasoning)
        assert len(answer.malformed) <= 1
        assert all(call.text and call.text in text[:end] for call in answer.malformed)
        said = answer.content + answer.reasoning + "".join(call.text for call in answer.malformed)
        said += "".join(call.arguments_text for call in answer.calls)
        for word in re.findall("Paris|Let me look|They ask", text[:end]):
            assert word in said


@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_no_more_is_held_back_than_may_be_a_marker(name: str) -> None:
    """Content, reasoning and text of arguments come out while they stream."""
    dialect = named(name)
    filler = "".join(f"{number} < [ \n\n ' {{ é> " for number in range(100))
    for text in (filler, EXAMPLES[name].replace("They ask.", filler), EXAMPLES[name].replace("Paris", "Paris " * 200)):
        parser = dialect.parser(tools=TOOLS)
        for character in text:
            for event in parser.feed(character):
                assert not isinstance(event, MalformedToolCall)
                if isinstance(event, ContentDelta | ReasoningDelta):
                    assert len(event.text) <= LONGEST_MARKER
                elif isinstance(event, ToolCallDelta):
                    assert len(event.arguments_text) <= LONGEST_MARKER


def test_a_finished_parser_takes_no_more() -> None:
    parser = named("hermes").parser()
    parser.finish()
    assert parser.finish() == []
    with pytest.raises(ClosedError, match="new parser for each answer"):
        parser.feed("x")


def test_an_unknown_name_is_an_error_that_lists_the_names() -> None:
    with pytest.raises(ConfigError, match=r"dialect must be one of apertus, .*, text, got 'latin'"):
        named("latin")


def test_ids_are_nine_letters_and_digits_where_the_dialect_has_none() -> None:
    ids = set()
    for _ in range(20):
        parser = named("hermes").parser(tools=TOOLS)
        calls = summed(parser.feed(EXAMPLES["hermes"]) + parser.finish()).calls
        ids |= {call.id for call in calls}
    assert len(ids) == 40
    assert all(re.fullmatch("[a-zA-Z0-9]{9}", found) for found in ids)


def test_ids_that_a_dialect_writes_are_kept() -> None:
    assert [call.id for call in read(named("kimi-k2"), EXAMPLES["kimi-k2"]).calls] == [
        "functions.weather:0",
        "functions.get_time:1",
    ]
    assert [call.id for call in read(named("mistral-tekken"), EXAMPLES["mistral-tekken"]).calls] == ["a1B2c3D4e", "id0"]
    assert read(named("solar"), EXAMPLES["solar"]).calls[1].id == "b1B2c3D4e"
    early = '[TOOL_CALLS][{"id": "a1B2c3D4e", "name": "get_time", "arguments": {}}]'
    assert read(named("mistral"), early).calls[0].id == "a1B2c3D4e"
    late = '[TOOL_CALLS][{"name": "get_time", "arguments": {}, "id": "a1B2c3D4e"}]'
    assert read(named("mistral"), late).calls[0].id == "id0", "the call began before its id came"


def test_files_without_a_template() -> None:
    tokens = {"tokenizer.ggml.tokens": ["a", "<tool_call>"], "tokenizer.ggml.token_type": [1, 4]}
    assert detect(None, tokens).name == "hermes"
    tokens = {"tokenizer.ggml.tokens": ["<|eot_id|>", "<|python_tag|>"], "tokenizer.ggml.token_type": [3, 3]}
    assert detect("{{ messages }}", tokens).name == "llama3"
    assert detect(None, {"general.architecture": "gpt-oss"}).name == "harmony"
    assert detect(None, {"general.architecture": "gemma3"}).name == "gemma"
    assert detect(None, {"general.architecture": "qwen2vl"}).name == "hermes", "another converter's name of qwen25vl"
    assert detect(None, {}).name == "text"
    assert detect("{{ messages[0].content }}", {}).name == "json"


def test_a_template_says_whether_a_model_thinks() -> None:
    assert detect("<tool_call> <think>").thinks
    assert not detect("<tool_call>").thinks
    assert detect(None, {"general.architecture": "qwen3"}).thinks


def test_a_template_says_what_ends_its_turns() -> None:
    assert detect("<tool_call> <|end_of_text|>").stops() == ("<|end_of_text|>",)
    assert detect("<tool_call> <|im_end|> <|end_of_text|>").stops() == ("<|im_end|>",)
    assert detect("<tool_call>").stops() == ("<|im_end|>",)
