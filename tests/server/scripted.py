"""A model that says what a test has written: reasoning, calls and errors that small models do not give on demand."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ollama_engine.chat.dialects import ToolDefinition, named
from ollama_engine.errors import ModelNotFoundError
from ollama_engine.runner.chat.answer_reader import AnswerReader
from ollama_engine.runner.chat.results import ChatChunk
from ollama_engine.runner.request.results import Chunk, Usage
from ollama_engine.server.managing import LoadedModel, ModelLease
from ollama_engine.server.served import ModelFacts
from ollama_engine.store.stored_model import StoredModel

__all__ = ["ScriptedModels"]

WIDTH = 3
"""Characters of a chunk, which stands for one token."""


@dataclass
class ScriptedModels:
    """A library, a manager and a model in one; its methods are those that chats need.

    Attributes:
        answer: what the model writes.
        dialect: that reads it.
        error: raised behind the answer, or instead of it where that is empty.
        finish_reason: how the answer ends.
        refused: values of `think` that the template does not have, with the error they raise.
        asked: keyword arguments of all chats.
    """

    answer: str = "Hello"
    dialect: str = "hermes"
    error: Exception | None = None
    finish_reason: Any = "stop"
    refused: Mapping[Any, Exception] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0
    stored: StoredModel = field(default_factory=lambda: StoredModel("scripted:latest", "0" * 64, 1, 0.0, Path("none")))

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            architecture="llama", num_ctx=4096, context_length=4096, n_embd=None, n_parameters=1, parallel=1,
            capabilities=frozenset({"completion", "tools", "thinking"}), memory_bytes=1, device_bytes=0,
        )  # fmt: skip

    # -- library and manager --

    def find(self, name: str) -> StoredModel:
        if name != "scripted":
            raise ModelNotFoundError(f"model '{name}' not found")
        return self.stored

    def list(self) -> list[StoredModel]:
        return [self.stored]

    @asynccontextmanager
    async def lease(self, stored: StoredModel, options: Any, keep_alive: Any = None) -> AsyncIterator[ModelLease]:
        model: Any = self
        yield ModelLease(model, 0.0)

    def loaded(self) -> list[LoadedModel]:
        model: Any = self
        return [LoadedModel(model, math.inf, 0)]

    async def close(self) -> None:
        pass

    # -- model --

    async def chat(self, messages: Sequence[object], params: Any, **options: Any) -> AsyncGenerator[ChatChunk, None]:
        self.asked.append({"messages": messages, "params": params, **options})
        try:
            ways = options["think"] if isinstance(options.get("think"), tuple) else (options.get("think"),)
            if all(way in self.refused for way in ways):
                raise self.refused[ways[-1]]
            tools = tuple(
                ToolDefinition(tool["function"]["name"], tool["function"].get("parameters", {}))
                for tool in options.get("tools") or ()
            )
            reader = AnswerReader(named(self.dialect).parser(tools=tools, reasoning_open=False))
            for start in range(0, len(self.answer), WIDTH):
                yield reader.read(Chunk(self.answer[start : start + WIDTH], (start // WIDTH,)))
            if self.error is not None:
                raise self.error
            n = -(-len(self.answer) // WIDTH)
            yield reader.read(Chunk("", (), None, self.finish_reason, Usage(10, n, 4, 0.0, 0.0, 0.0)))
        finally:
            self.closed += 1

    async def detokenize(self, ids: Sequence[int]) -> str:
        return "".join(self.answer[WIDTH * token : WIDTH * (token + 1)] for token in ids)
