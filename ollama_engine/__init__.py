"""An embeddable LLM inference engine: models written in Python, run at ggml speed.

    from ollama_engine import Engine, SamplingParams

    with Engine("model.gguf") as engine:
        print(engine.generate("Once upon a time", SamplingParams(max_tokens=64)).text)

Importing this package loads no backend and starts no thread: a name is imported when it is first used.
"""

from __future__ import annotations

from ollama_engine.lazy import lazy_names

TYPE_CHECKING = False
"""To type checkers it is typing's. Importing that takes 20 ms, in which Ctrl-C would end a program with a traceback."""

if TYPE_CHECKING:
    from ollama_engine.chat.messages import Message, ToolCall
    from ollama_engine.config import EngineConfig
    from ollama_engine.engine import Engine
    from ollama_engine.errors import EngineError
    from ollama_engine.ml.device.device_info import Device
    from ollama_engine.ml.device.memory import MemoryReport
    from ollama_engine.runner.chat.options import ChatKeywords, TemplateKeywords
    from ollama_engine.runner.chat.results import ChatChunk, ChatResult
    from ollama_engine.runner.chat.streams import AsyncChatStream, ChatStream
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.runner.load.model_info import ModelInfo
    from ollama_engine.runner.observe.metrics import MetricsSnapshot
    from ollama_engine.runner.observe.monitor import SlotInfo
    from ollama_engine.runner.request.astream import AsyncStream
    from ollama_engine.runner.request.options import RequestKeywords
    from ollama_engine.runner.request.reasoning import ReasoningBudget
    from ollama_engine.runner.request.request import Request
    from ollama_engine.runner.request.results import Chunk, Completion, Usage
    from ollama_engine.runner.request.stream import Stream
    from ollama_engine.runner.score.results import Score
    from ollama_engine.runner.session.session import Session
    from ollama_engine.sample import SamplingParams, TokenLogprobs
    from ollama_engine.sample.constraints.formats import GBNF, Choice, Lark, Regex
    from ollama_engine.segments import ImageSource, Media, Text, Tokens
    from ollama_engine.server.isolation.process_engine import ProcessEngine

__version__ = "0.1.0"

__all__ = [
    "GBNF",
    "AsyncChatStream",
    "AsyncStream",
    "ChatChunk",
    "ChatKeywords",
    "ChatResult",
    "ChatStream",
    "Choice",
    "Chunk",
    "Completion",
    "Device",
    "Embedding",
    "Engine",
    "EngineConfig",
    "EngineError",
    "ImageSource",
    "Lark",
    "Media",
    "MemoryReport",
    "Message",
    "MetricsSnapshot",
    "ModelInfo",
    "ProcessEngine",
    "ReasoningBudget",
    "Regex",
    "Request",
    "RequestKeywords",
    "SamplingParams",
    "Score",
    "Session",
    "SlotInfo",
    "Stream",
    "TemplateKeywords",
    "Text",
    "TokenLogprobs",
    "Tokens",
    "ToolCall",
    "Usage",
    "__version__",
]

_HOMES = {
    "GBNF": "sample.constraints.formats",
    "AsyncChatStream": "runner.chat.streams",
    "AsyncStream": "runner.request.astream",
    "ChatChunk": "runner.chat.results",
    "ChatKeywords": "runner.chat.options",
    "ChatResult": "runner.chat.results",
    "ChatStream": "runner.chat.streams",
    "Choice": "sample.constraints.formats",
    "Chunk": "runner.request.results",
    "Completion": "runner.request.results",
    "Device": "ml.device.device_info",
    "Embedding": "runner.embed.results",
    "Engine": "engine",
    "EngineConfig": "config",
    "EngineError": "errors",
    "ImageSource": "segments",
    "Lark": "sample.constraints.formats",
    "Media": "segments",
    "MemoryReport": "ml.device.memory",
    "Message": "chat.messages",
    "MetricsSnapshot": "runner.observe.metrics",
    "ModelInfo": "runner.load.model_info",
    "ProcessEngine": "server.isolation.process_engine",
    "ReasoningBudget": "runner.request.reasoning",
    "Regex": "sample.constraints.formats",
    "Request": "runner.request.request",
    "RequestKeywords": "runner.request.options",
    "SamplingParams": "sample",
    "Score": "runner.score.results",
    "Session": "runner.session.session",
    "SlotInfo": "runner.observe.monitor",
    "Stream": "runner.request.stream",
    "TemplateKeywords": "runner.chat.options",
    "Text": "segments",
    "TokenLogprobs": "sample",
    "Tokens": "segments",
    "ToolCall": "chat.messages",
    "Usage": "runner.request.results",
    "demo": "demo",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
