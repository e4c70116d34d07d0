"""RemoteModel: a served model whose engine is in another process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import httpx

from ollama_engine.chat.go_template import GoTemplate
from ollama_engine.errors import ModelProcessError
from ollama_engine.server.isolation.codec import decode, encode
from ollama_engine.server.isolation.failures import error_of
from ollama_engine.server.isolation.formats import FormatAtHome
from ollama_engine.server.isolation.remote_stream import RemoteStream

if TYPE_CHECKING:
    from ollama_engine.runner.chat.results import ChatChunk
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.runner.observe.monitor import SlotInfo
    from ollama_engine.runner.observe.trace import StepRecord
    from ollama_engine.runner.request.prompts import Images, Prompt
    from ollama_engine.runner.request.results import Chunk
    from ollama_engine.sample import SamplingParams
    from ollama_engine.segments import Segment
    from ollama_engine.server.isolation.model_process import ModelProcess
    from ollama_engine.server.served import AnswerStream, ModelFacts
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["RemoteModel", "request"]


class RemoteModel:
    """`ServedModel` over a model's process. Arguments that cannot cross raise ConfigError where they are given."""

    def __init__(self, process: ModelProcess, stored: StoredModel, facts: ModelFacts) -> None:
        self.process = process
        self._stored = stored
        self._facts = facts
        self._template = None if stored.template is None else GoTemplate(stored.template)

    @property
    def stored(self) -> StoredModel:
        return self._stored

    @property
    def facts(self) -> ModelFacts:
        return self._facts

    def generate(
        self, prompt: Prompt, params: SamplingParams, *, images: Images = None, **options: Any
    ) -> AnswerStream[Chunk]:
        return self._stream("generate", prompt, params, images=images, **options)

    def chat(self, messages: Sequence[object], params: SamplingParams, **options: Any) -> AnswerStream[ChatChunk]:
        return self._stream("chat", list(messages), params, **self._with_template(options))

    def _with_template(self, options: dict[str, Any]) -> dict[str, Any]:
        """The stored model's template stands above the GGUF file's, and a request's above both."""
        return options if self._template is None or options.get("template") else {**options, "template": self._template}

    def _stream(self, method: str, *args: Any, **kwargs: Any) -> RemoteStream[Any]:
        wanted = FormatAtHome(kwargs.get("format"))
        if "format" in kwargs:
            kwargs["format"] = wanted.sent
        body = {"method": method, "args": encode(list(args)), "kwargs": encode(kwargs)}
        return RemoteStream(lines(self.process, body, wanted))

    async def _call(self, method: str, *args: Any, **kwargs: Any) -> Any:
        body = {"method": method, "args": encode(list(args)), "kwargs": encode(kwargs)}
        return decode((await request(self.process, "/engine/call", body))["result"])

    async def embed(
        self, texts: Sequence[Prompt], *, normalize: bool, dimensions: int | None, truncate: bool
    ) -> list[Embedding]:
        found: list[Embedding] = await self._call(
            "embed", list(texts), normalize=normalize, dimensions=dimensions, truncate=truncate
        )
        return found

    async def rank(self, query: str, documents: Sequence[str]) -> list[float]:
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

    async def steps(self, last: int) -> list[StepRecord]:
        found: list[StepRecord] = await self._call("steps", last)
        return found

    async def trace(self) -> str:
        found: str = await self._call("trace")
        return found


async def request(process: ModelProcess, path: str, body: Mapping[str, Any]) -> Any:
    """What a process answers. Raises the error that it says, and ModelProcessError where it has ended."""
    try:
        response = await process.client.post(path, content=json.dumps(body).encode())
        found = response.json()
    except (httpx.TransportError, RuntimeError, ValueError) as error:  # RuntimeError: the client is closed
        raise (await process.lost()) from error
    if response.status_code != 200:
        raise _failure(found)
    return found


async def lines(process: ModelProcess, body: Mapping[str, Any], wanted: FormatAtHome) -> AsyncIterator[Any]:
    """Chunks of an answer. Closing this closes the connection, which cancels the request in the process."""
    finished = False
    try:
        content = json.dumps(body).encode()
        async with process.client.stream("POST", "/engine/stream", content=content) as response:
            if response.status_code != 200:
                raise _failure(json.loads(await response.aread()))
            async for line in response.aiter_lines():
                found = json.loads(line)
                if "$failure" in found:
                    raise error_of(found["$failure"])
                chunk = decode(found)
                finished = chunk.finish_reason is not None
                yield wanted.reading(chunk)
    except (httpx.TransportError, httpx.StreamError, json.JSONDecodeError) as error:
        raise (await process.lost()) from error
    except RuntimeError as error:
        if not process.client.is_closed:
            raise
        raise (await process.lost()) from error
    if not finished:
        raise await process.lost()


def _failure(found: Any) -> Exception:
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        return error_of(found["failure"])
    return ModelProcessError(f"a model's process answered {found!r:.200}")
