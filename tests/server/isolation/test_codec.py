"""Everything that crosses between a server and a model's process arrives as it was sent."""

from __future__ import annotations

import dataclasses
import io
import json
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine import errors
from ollama_engine.chat.events import MalformedToolCall, ParsedToolCall, ToolCallDelta, ToolCallEnd, ToolCallStart
from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.chat.messages import Message, ToolCall
from ollama_engine.errors import ConfigError, EngineError, GrammarError, NoMemoryError, Option
from ollama_engine.ml.device.memory import DeviceMemory, MemoryReport
from ollama_engine.ml.device.placement_plan import LayerSizes, ModelSizes, PlacementOptions, Room
from ollama_engine.ml.device.placement_planner import plan_placement
from ollama_engine.runner.chat.results import ChatChunk
from ollama_engine.runner.embed.results import Embedding
from ollama_engine.runner.observe.trace import PhaseSpan, StepRecord
from ollama_engine.runner.request.reasoning import ReasoningBudget
from ollama_engine.runner.request.results import Chunk, Usage
from ollama_engine.sample import SamplingParams, TokenLogprobs
from ollama_engine.sample.constraints.formats import GBNF, Choice, Lark, Regex
from ollama_engine.segments import Media, Text, Tokens
from ollama_engine.server.isolation.codec import decode, encode
from ollama_engine.server.isolation.failures import error_of, sent_error
from ollama_engine.server.isolation.registry import KNOWN
from ollama_engine.server.served import ModelFacts
from tests.support.suite import scaled

TEXTS = st.text(st.characters(), max_size=8) | st.sampled_from(
    ["", "$", "$bytes", "\ud800", "\ud83d\ude00", "\0", "é\n"]
)
NUMBERS = st.floats(allow_nan=False) | st.integers(-(2**70), 2**70)
TOKENS = st.lists(st.integers(0, 2**31), max_size=3).map(tuple)
LOGPROBS = st.builds(
    TokenLogprobs,
    st.integers(0, 9),
    st.floats(max_value=0.0),
    st.lists(st.tuples(st.integers(0, 9), NUMBERS), max_size=2),
)
USAGES = st.builds(Usage, *[st.integers(0, 99)] * 3, *[st.floats(0, 9)] * 3, *[st.integers(0, 9)] * 4)
ANSWER = {
    "tokens": TOKENS,
    "logprobs": st.none() | st.lists(LOGPROBS, max_size=2).map(tuple),
    "usage": st.none() | USAGES,
    "prompt_logprobs": st.none() | st.lists(st.none() | LOGPROBS, max_size=2).map(tuple),
}
JSON = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
CALLS = st.builds(ParsedToolCall, TEXTS, TEXTS, OBJECTS, TEXTS)
EVENTS = (
    st.builds(ToolCallStart, st.integers(0, 9), TEXTS, TEXTS)
    | st.builds(ToolCallDelta, st.integers(0, 9), TEXTS)
    | st.builds(ToolCallEnd, st.integers(0, 9), CALLS)
    | st.builds(MalformedToolCall, **{f.name: TEXTS for f in dataclasses.fields(MalformedToolCall) if f.type == "str"})
)
CHUNKS = st.builds(Chunk, TEXTS, finish_reason=st.sampled_from([None, "stop", "length"]), **ANSWER)
CHAT_CHUNKS = st.builds(
    ChatChunk, content=TEXTS, reasoning=TEXTS, tool_events=st.lists(EVENTS, max_size=3).map(tuple),
    finish_reason=st.sampled_from([None, "stop", "length", "tool_calls"]), **ANSWER,
)  # fmt: skip
VALUES = st.recursive(
    JSON | st.binary(max_size=9) | CHUNKS | CHAT_CHUNKS | st.frozensets(TEXTS, max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.lists(inner, max_size=3).map(tuple)
    | st.dictionaries(st.integers() | TEXTS | st.tuples(TEXTS), inner, max_size=3),
    max_leaves=6,
)  # fmt: skip


def crossed(value: object) -> Any:
    return decode(json.loads(json.dumps(encode(value), allow_nan=False)))


@given(VALUES)
@settings(max_examples=scaled(300, quick=60))
def test_values_arrive_as_they_were_sent(value: object) -> None:
    found = crossed(value)
    assert found == value
    assert type(found) is type(value)


PARAMS = SamplingParams(temperature=0.5, stop=("a", "b"), logit_bias={5: -math.inf, 7: 2.5}, seed=2**60, max_tokens=3)
PLACEMENT = plan_placement(ModelSizes(layers=(LayerSizes(5, 3, 1),) * 2), [Room("GPU0", 9, 1)], PlacementOptions())
EXAMPLES = [
    PARAMS,
    SamplingParams(),
    [Text("a", parse_special=True), Tokens([1, 2]), Media(b"bytes of a file")],
    Message("assistant", ("look: ", Media(b"x")), tool_calls=(ToolCall("f", {"a": 1}, "id"),), extra={"thinking": "y"}),
    [Regex("a+"), Choice(("a", "b")), Lark("start: /a/"), GBNF('root ::= "a"')],
    ReasoningBudget(5, opens=None, message="now"),
    ModelFacts("llama", 1, 2, None, 3, 4, frozenset({"tools"}), 5, 6),
    MemoryReport((DeviceMemory("CPU", weights=1),), {"blk.0": 5}, PLACEMENT),
    StepRecord(1, (PhaseSpan("wait", 0.5, 0.75),), graph_reused=True),
    Option("num_ctx", "5"),
    -math.inf,
    {"think": True, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"$ref": "#/x"}}}]},
]


@pytest.mark.parametrize("value", EXAMPLES, ids=lambda value: type(value).__name__)
def test_other_types_of_the_interface_arrive(value: object) -> None:
    assert crossed(value) == value


def test_every_listed_class_is_among_the_examples() -> None:
    # Compared otherwise, or in tests of processes.
    shown = {"Embedding", "GoTemplate", "SlotInfo", "SentReader", "Completion", "ChatResult", "Score", "ModelInfo",
             "EngineConfig", "MetricsSnapshot", "CellCounts", "Histogram"}  # fmt: skip

    def look(value: Any) -> None:
        shown.add(type(value).__name__)
        if isinstance(value, (list, tuple)):
            for item in value:
                look(item)
        elif dataclasses.is_dataclass(value):
            for field in dataclasses.fields(value):
                look(getattr(value, field.name))

    for value in (*EXAMPLES, CHUNKS, Chunk("", usage=Usage(1, 2, 3, 0.0, 0.0, 0.0)), ChatChunk(),
                  TokenLogprobs(1, 0.0, []), ToolCallStart(0, "", ""), ToolCallDelta(0, ""),
                  ToolCallEnd(0, ParsedToolCall("", "", {}, "")), MalformedToolCall):  # fmt: skip
        look(value)
    shown |= {"MalformedToolCall"}
    assert set(KNOWN) <= shown


def test_arrays_keep_type_shape_and_bits() -> None:
    for dtype in (np.float32, np.int64, np.uint8, np.bool_):
        array = np.arange(6).reshape(2, 3).astype(dtype)
        found = crossed(array)
        assert (found.dtype, found.shape) == (array.dtype, array.shape)
        assert np.array_equal(found, array)
        assert found.flags.writeable
    embedding = crossed(Embedding(np.float32([0.1, -0.0, math.nan]), 3, 1))
    assert embedding.vector.tobytes() == np.float32([0.1, -0.0, math.nan]).tobytes()
    assert crossed([np.int32(3), np.float32(0.5)]) == [3, 0.5]
    assert math.isnan(crossed(math.nan))


def test_templates_and_pictures_cross() -> None:
    assert crossed(GoTemplate("{{ .Prompt }}")).source == "{{ .Prompt }}"
    assert crossed(io.BytesIO(b"a file")) == b"a file"
    assert crossed([bytearray(b"a"), memoryview(b"b")]) == [b"a", b"b"]
    picture: Any = crossed(np.zeros((2, 2, 3), np.uint8))
    assert picture.shape == (2, 2, 3)


def test_objects_with_fields_cross_as_dicts() -> None:
    @dataclasses.dataclass
    class Said:
        role: str
        content: str

    assert crossed([Said("user", "hi")]) == [{"role": "user", "content": "hi"}]


@pytest.mark.parametrize("value", [print, lambda ids, logits: None, object(), int, [open]])
def test_what_cannot_cross_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="cannot be given to a model in a process of its own"):
        encode({"logits_processors": (value,)})


@pytest.mark.parametrize(
    "sent", [{"$": "Popen", "args": ["ls"]}, {"$eval": "1"}, {"$": ["Chunk"]}, {"$bytes": "", "b": 1}]
)
def test_nothing_else_is_made_of_what_arrives(sent: Mapping[str, Any]) -> None:
    with pytest.raises(ValueError, match="of this protocol"):
        decode(sent)


KINDS = [
    found for found in vars(errors).values()
    if isinstance(found, type) and issubclass(found, EngineError)
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
def test_errors_keep_class_message_advice_and_status(kind: type[EngineError]) -> None:
    error = kind(Option("num_ctx"), " is too large", advice=[("lower ", Option("parallel")), "wait"])
    error.text_number = 3
    found = error_of(json.loads(json.dumps(sent_error(error))))
    assert type(found) is kind
    assert isinstance(found, EngineError)
    assert (str(found), found.option, found.text_number) == (str(error), "num_ctx", 3)
    assert found.message(lambda option: f"--{option.name}") == error.message(lambda option: f"--{option.name}")


def test_errors_keep_what_they_carry() -> None:
    grammar = error_of(json.loads(json.dumps(sent_error(GrammarError("no", pointer="/a", keyword="type")))))
    assert isinstance(grammar, GrammarError)
    assert (grammar.pointer, grammar.keyword) == ("/a", "type")
    report = MemoryReport((DeviceMemory("CPU", weights=1 << 20),))
    memory = error_of(json.loads(json.dumps(sent_error(NoMemoryError("too large", report=report)))))
    assert isinstance(memory, NoMemoryError)
    assert memory.report == report
    assert "too large\n" in str(memory)


def test_errors_that_nobody_raised_on_purpose_keep_their_text() -> None:
    assert str(error_of(sent_error(KeyError("x")))) == "KeyError: 'x'"
    found = error_of(sent_error(FileNotFoundError(2, "No such file", "/nowhere")))
    assert isinstance(found, FileNotFoundError)
    assert found.filename == "/nowhere"
    with pytest.raises(ValueError, match="of this protocol"):
        error_of({"type": "SystemExit", "parts": []})
