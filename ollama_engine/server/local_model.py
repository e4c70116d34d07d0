"""LocalModel: a served model whose engine is in this process."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ollama_engine.server.model_base import ModelBase
from ollama_engine.server.served import AnswerStream, ModelFacts

if TYPE_CHECKING:
    from ollama_engine.engine import Engine
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.runner.embed.texts import Written
    from ollama_engine.runner.observe.monitor import SlotInfo
    from ollama_engine.runner.observe.trace import StepRecord
    from ollama_engine.runner.request.prompts import Images, Prompt
    from ollama_engine.runner.request.results import Chunk
    from ollama_engine.sample import SamplingParams
    from ollama_engine.segments import Segment
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["LocalModel", "plain"]

FEW = 1000
"""Tokens that are looked up in less than a step's time."""


class LocalModel(ModelBase):
    """`ServedModel` over an Engine. What may take long and computes nothing runs in a thread beside the event loop."""

    def __init__(self, engine: Engine, stored: StoredModel, facts: ModelFacts) -> None:
        super().__init__(stored, facts)
        self.engine = engine

    def generate(
        self, prompt: Prompt, params: SamplingParams, *, images: Images = None, **options: Any
    ) -> AnswerStream[Chunk]:
        stream = self.engine.astream(prompt, params, images=images, **options)
        stream.merges = True
        return stream

    def chat(self, messages: Sequence[object], params: SamplingParams, **options: Any) -> AnswerStream[ChatChunk]:
        stream = self.engine.achat_stream(messages, params, **self._with_template(options))
        stream.merges = True
        return stream

    async def embed(
        self, texts: Sequence[Prompt], *, normalize: bool, dimensions: int | None, truncate: bool,
        prompt_name: str | None = None, task: str | None = None,
    ) -> list[Embedding]:  # fmt: skip
        overflow: Any = "truncate" if truncate else "error"
        listed: Any = list(texts)
        return await self.engine.aembeddings(
            listed, normalize=normalize, dimensions=dimensions, on_overflow=overflow, prompt_name=prompt_name, task=task
        )

    async def rank(self, query: str, documents: Sequence[Written]) -> list[float]:
        return [float(score) for score in await self.engine.arank(query, documents)]

    async def tokenize(
        self, text: str | Sequence[Segment], *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        return await asyncio.to_thread(self.engine.tokenize, text, add_special=add_special, parse_special=parse_special)

    async def detokenize(self, ids: Sequence[int]) -> str:
        return await asyncio.to_thread(self.engine.detokenize, ids)

    async def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        if len(ids) <= FEW:  # as every streamed token asks for: a thread would take longer
            return list(map(self.engine.token_bytes, ids))
        return await asyncio.to_thread(lambda: list(map(self.engine.token_bytes, ids)))

    async def apply_template(self, messages: Sequence[object], **options: Any) -> list[Segment]:
        return await asyncio.to_thread(self.engine.apply_template, messages, **self._with_template(options))

    async def metrics(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = plain(self.engine.metrics)
        return found

    async def slots(self) -> list[SlotInfo]:
        return self.engine.slots()

    async def steer(self, request: int, priority: int | None) -> bool:
        if priority is None:
            return self.engine.cancel(request)
        return await asyncio.to_thread(self.engine.set_priority, request, priority)

    async def steps(self, last: int) -> list[StepRecord]:
        return self.engine.steps(last)

    async def trace(self) -> str:
        return await asyncio.to_thread(self.engine.trace)


def plain(value: Any) -> Any:
    """Dataclasses and mappings as dicts, tuples as lists, all the way down."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value
