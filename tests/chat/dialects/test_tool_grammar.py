"""Grammars of calls: what they accept is well-formed and follows the schemas, and free text stays free."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from ollama_engine.chat.dialects import DIALECTS, Dialect, ToolDefinition, named
from ollama_engine.chat.dialects.answer import Answer
from ollama_engine.chat.dialects.tool_grammar import Json
from ollama_engine.errors import ConfigError
from ollama_engine.sample.constraints.source import lark_with_schemas
from tests.chat.dialects.examples import EXAMPLES
from tests.chat.dialects.reading import TOOLS, read
from tests.chat.dialects.walks import Vocabulary, accepts, matcher, walk
from tests.support.suite import scaled

PLACE: dict[str, Any] = {
    "type": "object",
    "properties": {"lat": {"type": "number"}, "tags": {"type": "array", "items": {"type": "string"}}},
    "required": ["lat"],
    "additionalProperties": False,
}
OFFERED = (
    ToolDefinition(
        "weather",
        {
            "type": "object",
            "properties": {
                "city": {"type": "string"},
                "kind": {"type": "string", "enum": ["rain", "</tool_call>"]},
                "days": {"type": "integer"},
                "place": {"$ref": "#/$defs/place"},
                "note": {"type": ["string", "null"]},
            },
            "required": ["city", "place"],
            "additionalProperties": False,
            "$defs": {"place": PLACE},
        },
    ),
    ToolDefinition(
        "get_time",
        {"type": "object", "properties": {"summer": {"type": "boolean"}}, "additionalProperties": False},
    ),
    ToolDefinition("now"),
)
WITHOUT = {"text", "minimax-m3"}
WITH_GRAMMAR = sorted(set(DIALECTS) - WITHOUT)
UNMARKED = {"json", "functionary-v3.2"}
"""Dialects in which no marker says that a call begins."""
SEEDS = range(scaled(40, quick=3))

INNER = {
    "gemma4": ['<|"|>', "<tool_call|>"],
    "harmony": ["<|start|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|end|>"],
    "muse": ["<|start|>", "<|message|>", "<|eom|>"],
    "kimi-k2": ["<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"],
    "deepseek-v3": ["<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"],
    "mistral-tekken": ["[ARGS]"],
    "kimi-k3": ["<|open|>", "<|close|>", "<|sep|>"],
    "hermes": ["</tool_call>"],
    "deepseek-v3.2": ["｜DSML｜"],
}
"""Control tokens of vocabularies beside those that sections, reasoning and dropped markers are."""
VALUE_ENDS = (
    "\n</parameter>", "</parameter>", "</arg_value>", "</arg_value:opensource>", "</｜DSML｜parameter>", "]]>",
    "</atem:parameter>", "<|close|>argument<|sep|>", '<|"|>', "<|eom|>", "<|end|>",
)  # fmt: skip


def vocabularies(dialect: Dialect) -> list[Vocabulary]:
    """One in which all markers are text, and one in which they are control tokens."""
    inner = INNER.get(dialect.name, [])
    markers = {*dialect.sections, *(marker for pair in dialect.thinking for marker in pair), *dialect.dropped}
    split = [marker for marker in markers if any(token in marker for token in inner)]
    return [Vocabulary([]), Vocabulary(sorted((markers - set(split)) | set(inner)))]


def grammar_of(dialect: Dialect, vocabulary: Vocabulary, choice: str, tools: Any = OFFERED, **options: Any) -> str:
    made = dialect.tool_grammar(tools, choice, control_tokens=vocabulary.control_tokens, **options)
    assert made is not None
    return lark_with_schemas(made)


def follows(call: Any) -> bool:
    """Whether the arguments follow the schema of their tool, by what these schemas say."""
    arguments = dict(call.arguments)
    if call.name == "now":
        return True
    if call.name == "get_time":
        return set(arguments) <= {"summer"} and all(isinstance(value, bool) for value in arguments.values())
    place = arguments["place"]
    return (
        set(arguments) <= {"city", "kind", "days", "place", "note"}
        and isinstance(arguments["city"], str)
        and arguments.get("kind", "rain") in ("rain", "</tool_call>")
        and isinstance(arguments.get("days", 1), int)
        and isinstance(arguments.get("note", ""), str | None)
        and set(place) <= {"lat", "tags"}
        and isinstance(place["lat"], int | float)
        and all(isinstance(tag, str) for tag in place.get("tags", []))
    )


def answers(dialect: Dialect, choice: str, **options: Any) -> Iterator[tuple[str, Answer]]:
    """Answers that the grammar for this choice admits, in both vocabularies, and how they are read."""
    ends = (*(end for _, end in dialect.thinking), *VALUE_ENDS)
    for vocabulary in vocabularies(dialect):
        grammar = grammar_of(dialect, vocabulary, choice, **options)
        for seed in SEEDS:
            text = walk(vocabulary, grammar, seed, ends)
            if text is None:
                continue
            answer = read(dialect, text, tools=OFFERED)
            # An object that may have any keys may have one twice: grammars do not know.
            if not any(each.reason.endswith("comes twice") for each in answer.malformed):
                yield text, answer


@pytest.mark.parametrize("name", WITH_GRAMMAR)
def test_what_is_required_is_well_formed_and_follows_the_schemas(name: str) -> None:
    calls = 0
    for text, answer in answers(named(name), "required"):
        assert not answer.malformed, text
        assert not answer.content.strip(), text
        assert answer.calls, text
        assert all(map(follows, answer.calls)), text
        calls += len(answer.calls)
    assert calls >= len(SEEDS)


@pytest.mark.parametrize("name", WITH_GRAMMAR)
def test_a_value_may_stand_in_place_of_calls(name: str) -> None:
    form = Json({"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"]})
    values = calls = 0
    for text, answer in answers(named(name), "auto", value=form):
        assert not answer.malformed, text
        if answer.calls:
            assert not answer.content.strip(), text
            assert all(map(follows, answer.calls)), text
            calls += 1
        else:
            assert json.loads(answer.content) in ({"a": 1}, {"a": 2}), text
            values += 1
    assert values + calls >= len(SEEDS)
    assert calls
    assert values or name == "json"  # where both begin alike, and few walks are values


def texts(dialect: Dialect, choice: str, **options: bool) -> Iterator[str]:
    """Answers that the grammar for this choice admits."""
    vocabulary = vocabularies(dialect)[1]
    ends = (*(end for _, end in dialect.thinking), *VALUE_ENDS)
    grammar = grammar_of(dialect, vocabulary, choice, **options)
    walked = (walk(vocabulary, grammar, seed, ends) for seed in SEEDS)
    return (text for text in walked if text is not None)


@pytest.mark.parametrize("name", WITH_GRAMMAR)
def test_one_tool_and_one_call(name: str) -> None:
    dialect = named(name)
    for text in texts(dialect, "get_time", parallel=False):
        assert [call.name for call in read(dialect, text, tools=OFFERED).calls] == ["get_time"]


@pytest.mark.parametrize("name", WITH_GRAMMAR)
def test_text_is_free_until_a_call_begins(name: str) -> None:
    dialect = named(name)
    for vocabulary in vocabularies(dialect):
        made = dialect.tool_grammar(TOOLS, "auto", control_tokens=vocabulary.control_tokens)
        if name in UNMARKED:
            assert made is None
            continue
        assert made is not None
        for begin in _begins(name):
            assert accepts(vocabulary, made, f"{begin}It rains <b>{{}}[] é\n\n</b>.")
        assert accepts(vocabulary, made, EXAMPLES[name]) or name in ALSO_READ
        marker = next(iter(dialect.sections), None)
        if marker is not None and name != "muse":
            found = matcher(vocabulary, made)
            ids = vocabulary.tokenize(f"It rains.{marker} no call, ")
            assert found.validate_tokens(ids) < len(ids), "behind the marker comes a call"


ALSO_READ = {"command-r7b", "gemma", "harmony", "llama3", "minicpm5", "mistral", "mistral-tekken", "muse"}
"""Their examples hold forms that parsers read and grammars do not write: no ids, single quotes, ends of turns."""


def _begins(name: str) -> list[str]:
    if name == "harmony":
        final = "<|channel|>final<|message|>"
        return [final, f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant{final}"]
    if name == "muse":
        return [" to=user<|message|>", " to=self<|message|>Hm.<|eom|><|start|>assistant to=user<|message|>"]
    begins = [f"{begin}Hm.{end}\n\n" for begin, end in named(name).thinking[:1]]
    return ["", *begins]


@pytest.mark.parametrize("name", WITH_GRAMMAR)
def test_reasoning_that_the_prompt_opened_comes_first(name: str) -> None:
    dialect = named(name)
    if not dialect.thinking:
        return
    for text in texts(dialect, "now", reasoning_open=True):
        answer = read(dialect, text, tools=OFFERED, reasoning_open=True)
        assert answer.calls
        assert not answer.content.strip()


def test_what_no_grammar_is_made_for() -> None:
    hermes = named("hermes")
    assert hermes.tool_grammar((), "required") is None
    assert hermes.tool_grammar(OFFERED, "none") is None
    assert all(named(name).tool_grammar(OFFERED, "required") is None for name in WITHOUT)
    with pytest.raises(
        ConfigError, match=r'tool_choice must be "auto", .* one of weather, get_time, now, got \'clock\''
    ):
        hermes.tool_grammar(OFFERED, "clock")


def test_keywords_that_a_format_cannot_be_held_to_are_refused() -> None:
    tools = [ToolDefinition("f", {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x$"}}})]
    for name in ("qwen3-coder", "glm", "gemma4"):
        with pytest.raises(ConfigError, match=r"tools: f\.a has 'pattern', which this model's format"):
            named(name).tool_grammar(tools, "required")
    assert '"^x$"' in str(named("hermes").tool_grammar(tools, "required"))


def test_many_optional_arguments_make_a_grammar_of_linear_size() -> None:
    def size(count: int) -> int:
        properties = {f"argument{number}": {"type": "integer"} for number in range(count)}
        tools = [ToolDefinition("f", {"type": "object", "properties": properties})]
        return max(len(str(named(name).tool_grammar(tools, "required"))) for name in ("qwen3-coder", "lfm2", "gemma4"))

    assert size(800) < 6 * size(200)


def test_control_tokens_are_written_by_their_ids() -> None:
    grammar = named("hermes").tool_grammar(OFFERED, "required", control_tokens={"<tool_call>": 7, "</tool_call>": 8})
    assert grammar is not None
    assert "<[7]>" in grammar
    assert "<[8]>" in grammar
    assert json.dumps("<tool_call>") not in grammar


def test_a_model_that_does_not_think_is_not_let_to() -> None:
    vocabulary = Vocabulary([])
    for thinks in (True, False):
        dialect = replace(named("hermes"), thinks=thinks)
        text = "<think>\nHm.</think>\n<tool_call>\n" + '{"name": "now", "arguments": {}}\n</tool_call>'
        assert accepts(vocabulary, grammar_of(dialect, vocabulary, "required"), text) == thinks
        opened = grammar_of(dialect, vocabulary, "required", reasoning_open=True)
        assert accepts(vocabulary, opened, text.removeprefix("<think>"))
