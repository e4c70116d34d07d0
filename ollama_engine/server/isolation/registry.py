"""Registry: the classes whose objects cross between processes, and their fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import cache
from typing import Any

from ollama_engine.chat import events, messages
from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.config import EngineConfig
from ollama_engine.errors import Option
from ollama_engine.ml.device.memory import DeviceMemory, MemoryReport
from ollama_engine.ml.device.placement_plan import PlacementPlan, PlannedDevice
from ollama_engine.runner.chat.results import ChatChunk, ChatResult
from ollama_engine.runner.embed.results import Embedding
from ollama_engine.runner.load.model_info import ModelInfo
from ollama_engine.runner.observe.metrics import CellCounts, Histogram, MetricsSnapshot
from ollama_engine.runner.observe.monitor import SlotInfo
from ollama_engine.runner.observe.trace import PhaseSpan, StepRecord
from ollama_engine.runner.request.reasoning import ReasoningBudget
from ollama_engine.runner.request.results import Chunk, Completion, Usage
from ollama_engine.runner.score.results import Score
from ollama_engine.sample import SamplingParams, TokenLogprobs
from ollama_engine.sample.constraints.formats import GBNF, Choice, Lark, Regex
from ollama_engine.segments import Media, Text, Tokens
from ollama_engine.server.isolation.formats import SentReader
from ollama_engine.server.served import ModelFacts

__all__ = ["KNOWN", "class_fields", "known_class", "known_name"]

_NO_DEFAULT = object()

KNOWN: Mapping[str, type] = {cls.__name__: cls for cls in (
    Chunk, ChatChunk, Usage, TokenLogprobs, events.ToolCallStart, events.ToolCallDelta, events.ToolCallEnd,
    events.ParsedToolCall, events.MalformedToolCall, messages.Message, messages.ToolCall, Text, Tokens, Media,
    SamplingParams, Embedding, SlotInfo, StepRecord, PhaseSpan, Regex, Choice, Lark, GBNF,
    ReasoningBudget, ModelFacts, MemoryReport, DeviceMemory, PlacementPlan, PlannedDevice, GoTemplate, Option,
    SentReader, Completion, ChatResult, Score, ModelInfo, EngineConfig, MetricsSnapshot, CellCounts, Histogram,
)}  # fmt: skip
"""Classes that cross, by their names."""


def known_name(cls: type) -> str | None:
    """The name of a listed class; None for others, subclasses of listed ones included."""
    return cls.__name__ if KNOWN.get(cls.__name__) is cls else None


def known_class(name: object) -> Any:
    """The class of that name. Raises ValueError where none is listed."""
    cls = KNOWN.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"{name!r:.40} is no class of this protocol")
    return cls


@cache
def class_fields(cls: Any) -> Mapping[str, object]:
    """Names of the arguments that make an object of a listed class, with their defaults."""
    if dataclasses.is_dataclass(cls):
        return {
            field.name: _NO_DEFAULT if field.default is dataclasses.MISSING else field.default
            for field in dataclasses.fields(cls)
            if field.init
        }
    if hasattr(cls, "_fields"):
        return {name: cls._field_defaults.get(name, _NO_DEFAULT) for name in cls._fields}
    return {"source": _NO_DEFAULT}  # GoTemplate
