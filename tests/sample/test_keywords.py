"""SamplingKeywords are SamplingParams' fields, with their types."""

from __future__ import annotations

from typing import get_type_hints

from ollama_engine.sample import SamplingParams
from ollama_engine.sample.keywords import SamplingKeywords


def test_each_field_is_a_keyword() -> None:
    assert get_type_hints(SamplingKeywords) == get_type_hints(SamplingParams)
