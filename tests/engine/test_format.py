"""`format`: answers that follow a schema or a grammar, and their values."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.errors import ConfigError, IncompleteError

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 120}},
    "required": ["name", "age"],
    "additionalProperties": False,
}  # fmt: skip


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    with Engine(demo.path(), num_ctx=512, parallel=4, threads=1, verify=True) as made:
        yield made


def drawn(seed: int = 3, **fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.5, "max_tokens": 80, "seed": seed, **fields})


@pytest.mark.parametrize("given", [PERSON, json.dumps(PERSON)], ids=["dict", "text"])
def test_a_schema(engine: Engine, given: Any) -> None:
    answer = engine.generate("Once", drawn(), format=given)
    assert answer.finish_reason == "stop"
    assert answer.parsed == json.loads(answer.text)
    assert set(answer.parsed) == {"name", "age"}
    assert 0 <= answer.parsed["age"] <= 120


def test_an_answer_that_is_cut_off_has_no_value(engine: Engine) -> None:
    answer = engine.generate("Once", drawn(max_tokens=5), format=PERSON)
    assert answer.finish_reason == "length"
    with pytest.raises(IncompleteError, match="max_tokens or num_ctx was reached"):
        _ = answer.parsed


def test_without_a_format_there_is_no_value(engine: Engine) -> None:
    with pytest.raises(ConfigError, match="without format"):
        _ = engine.generate("Once", drawn(max_tokens=2)).parsed
