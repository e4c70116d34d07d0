"""An embeddable LLM inference engine: models written in Python, run at ggml speed.

    from ollama_engine import Engine, SamplingParams

    with Engine("model.gguf") as engine:
        print(engine.generate("Once upon a time", SamplingParams(max_tokens=64)).text)

Importing this package loads no backend and starts no thread: a name is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.lazy import lazy_names

if TYPE_CHECKING:
    from ollama_engine.config import EngineConfig
    from ollama_engine.engine import Engine
    from ollama_engine.errors import EngineError
    from ollama_engine.ml.device_info import Device
    from ollama_engine.ml.memory import MemoryReport
    from ollama_engine.runner.astream import AsyncStream
    from ollama_engine.runner.embedding import Embedding
    from ollama_engine.runner.metrics import MetricsSnapshot
    from ollama_engine.runner.model_info import ModelInfo
    from ollama_engine.runner.monitor import SlotInfo
    from ollama_engine.runner.request import Chunk, Completion, Request, Usage
    from ollama_engine.runner.session import Session
    from ollama_engine.runner.stream import Stream
    from ollama_engine.runner.terms import RequestOptions
    from ollama_engine.sample import SamplingParams, TokenLogprobs

__version__ = "0.1.0"

__all__ = [
    "AsyncStream",
    "Chunk",
    "Completion",
    "Device",
    "Embedding",
    "Engine",
    "EngineConfig",
    "EngineError",
    "MemoryReport",
    "MetricsSnapshot",
    "ModelInfo",
    "Request",
    "RequestOptions",
    "SamplingParams",
    "Session",
    "SlotInfo",
    "Stream",
    "TokenLogprobs",
    "Usage",
    "__version__",
]

_HOMES = {
    "AsyncStream": "runner.astream",
    "Chunk": "runner.request",
    "Completion": "runner.request",
    "Device": "ml.device_info",
    "Embedding": "runner.embedding",
    "Engine": "engine",
    "EngineConfig": "config",
    "EngineError": "errors",
    "MemoryReport": "ml.memory",
    "MetricsSnapshot": "runner.metrics",
    "ModelInfo": "runner.model_info",
    "Request": "runner.request",
    "RequestOptions": "runner.terms",
    "SamplingParams": "sample",
    "Session": "runner.session",
    "SlotInfo": "runner.monitor",
    "Stream": "runner.stream",
    "TokenLogprobs": "sample",
    "Usage": "runner.request",
}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
