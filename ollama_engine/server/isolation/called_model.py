"""CalledModel: a served model whose methods are called elsewhere; arguments and results cross by the codec."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from ollama_engine.server.isolation.codec import decode, encode
from ollama_engine.server.isolation.crossing import beside, prepared
from ollama_engine.server.isolation.failures import error_of
from ollama_engine.server.isolation.formats import FormatAtHome
from ollama_engine.server.isolation.remote_stream import RemoteStream
from ollama_engine.server.model_base import ModelBase

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.runner.embed.texts import Written
    from ollama_engine.runner.observe.monitor import SlotInfo
    from ollama_engine.runner.observe.trace import StepRecord
    from ollama_engine.runner.request.prompts import Images, Prompt
    from ollama_engine.runner.request.results import Chunk
    from ollama_engine.sample import SamplingParams
    from ollama_engine.segments import Segment
    from ollama_engine.server.served import AnswerStream

__all__ = ["CalledModel", "chunk_of"]


class CalledModel(ModelBase):
    """`ServedModel` over `_chunks` and `_result`, which subclasses define.

    Arguments that cannot cross raise ConfigError where they are given; large ones with the first chunk.
    """

    def _chunks(self, body: Mapping[str, Any], answer_format: FormatAtHome) -> AsyncGenerator[Any, None]:
        """Chunks of the answer that `body` asks for: a generator, which cancels the request when it is closed."""
        raise NotImplementedError

    async def _result(self, body: Mapping[str, Any]) -> Any:
        """The result of a method, encoded."""
        raise NotImplementedError

    def generate(
        self, prompt: Prompt, params: SamplingParams, *, images: Images = None, **options: Any
    ) -> AnswerStream[Chunk]:
        return self._stream("generate", prompt, params, images=images, **options)

    def chat(self, messages: Sequence[object], params: SamplingParams, **options: Any) -> AnswerStream[ChatChunk]:
        return self._stream("chat", list(messages), params, **self._with_template(options))

    def _stream(self, method: str, *args: Any, **kwargs: Any) -> RemoteStream[Any]:
        answer_format = FormatAtHome(kwargs.get("format"))
        if "format" in kwargs:
            kwargs["format"] = answer_format.sent
        body = prepared(_body, method, args, kwargs)

        async def chunks() -> AsyncGenerator[Any, None]:
            async with aclosing(self._chunks(await body(), answer_format)) as arriving:
                async for chunk in arriving:
                    yield chunk

        return RemoteStream(chunks())

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        result = await self._result(await beside(_body, method, args, kwargs))
        return await beside(decode, result)

    async def embed(
        self, texts: Sequence[Prompt], *, normalize: bool, dimensions: int | None, truncate: bool,
        prompt_name: str | None = None, task: str | None = None,
    ) -> list[Embedding]:  # fmt: skip
        embedded: list[Embedding] = await self._call(
            "embed",
            list(texts),
            normalize=normalize,
            dimensions=dimensions,
            truncate=truncate,
            prompt_name=prompt_name,
            task=task,
        )
        return embedded

    async def rank(self, query: str, documents: Sequence[Written]) -> list[float]:
        found: list[float] = await self._call("rank", query, list(documents))
        return found

    async def tokenize(
        self, text: str | Sequence[Segment], *, add_special: bool = True, parse_special: bool = True
    ) -> list[int]:
        found: list[int] = await self._call("tokenize", text, add_special=add_special, parse_special=parse_special)
        return found

    async def detokenize(self, ids: Sequence[int]) -> str:
        found: str = await self._call("detokenize", list(ids))
        return found

    async def token_bytes(self, ids: Sequence[int]) -> list[bytes]:
        found: list[bytes] = await self._call("token_bytes", list(ids))
        return found

    async def apply_template(self, messages: Sequence[object], **options: Any) -> list[Segment]:
        found: list[Segment] = await self._call("apply_template", list(messages), **self._with_template(options))
        return found

    async def metrics(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = await self._call("metrics")
        return found

    async def slots(self) -> list[SlotInfo]:
        found: list[SlotInfo] = await self._call("slots")
        return found

    async def steer(self, request: int, priority: int | None) -> bool:
        found: bool = await self._call("steer", request, priority)
        return found

    async def steps(self, last: int) -> list[StepRecord]:
        found: list[StepRecord] = await self._call("steps", last)
        return found

    async def trace(self) -> str:
        found: str = await self._call("trace")
        return found


def _body(method: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    return {"method": method, "args": encode(list(args)), "kwargs": encode(dict(kwargs))}


def chunk_of(line: str | bytes, answer_format: FormatAtHome) -> Any:
    """The chunk in a line of an answer. Raises the error that the line says, ValueError for what is neither."""
    sent = json.loads(line)
    if "$failure" in sent:
        raise error_of(sent["$failure"])
    return answer_format.reading(decode(sent))
