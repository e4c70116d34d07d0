"""RemoteModel: a served model whose engine is in another process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Any

import httpx

from ollama_engine.errors import ClosedError, DeviceLostError, ModelProcessError
from ollama_engine.server.isolation.called_model import CalledModel, chunk_of
from ollama_engine.server.isolation.crossing import beside, content_of, value_of
from ollama_engine.server.isolation.failures import error_of

if TYPE_CHECKING:
    from ollama_engine.server.isolation.formats import FormatAtHome
    from ollama_engine.server.isolation.model_process import ModelProcess
    from ollama_engine.server.served import ModelFacts
    from ollama_engine.store.stored_model import StoredModel

__all__ = ["RemoteModel", "lines", "request"]


class RemoteModel(CalledModel):
    """`ServedModel` over a model's process."""

    def __init__(self, process: ModelProcess, stored: StoredModel, facts: ModelFacts) -> None:
        super().__init__(stored, facts)
        self.process = process

    def _chunks(self, body: Mapping[str, Any], answer_format: FormatAtHome) -> AsyncGenerator[Any, None]:
        return lines(self.process, body, answer_format)

    async def _result(self, body: Mapping[str, Any]) -> Any:
        return (await request(self.process, "/engine/call", body))["result"]


async def request(process: ModelProcess, path: str, body: Mapping[str, Any]) -> Any:
    """The answer of a process. Raises the error that it says, and ModelProcessError where it has ended."""
    try:
        async with process.client.stream("POST", path, content=await content_of(body)) as response:
            pieces = [piece async for piece in response.aiter_bytes()]
        answer = await value_of(await beside(b"".join, pieces))
    except (httpx.TransportError, httpx.StreamError, RuntimeError, ValueError) as error:  # RuntimeError: it is closed
        raise (await process.lost()) from error
    if response.status_code != 200:
        raise _failure(process, answer)
    return answer


async def lines(
    process: ModelProcess, body: Mapping[str, Any], answer_format: FormatAtHome, path: str = "/engine/stream"
) -> AsyncGenerator[Any, None]:
    """Chunks of an answer. Closing this closes the connection, which cancels the request in the process."""
    finished = False
    try:
        async with process.client.stream("POST", path, content=await content_of(body)) as response:
            if response.status_code != 200:
                raise _failure(process, json.loads(await response.aread()))
            async for line in response.aiter_lines():
                chunk = chunk_of(line, answer_format)
                finished = chunk.finish_reason is not None
                yield chunk
    except (ClosedError, DeviceLostError):
        process.engine_closed = True
        raise
    except (httpx.TransportError, httpx.StreamError, json.JSONDecodeError) as error:
        raise (await process.lost()) from error
    except RuntimeError as error:
        if not process.client.is_closed:
            raise
        raise (await process.lost()) from error
    if not finished:
        raise await process.lost()


def _failure(process: ModelProcess, answer: Any) -> Exception:
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError):
        error = error_of(answer["failure"])
        process.engine_closed |= isinstance(error, (ClosedError, DeviceLostError))
        return error
    return ModelProcessError(f"a model's process answered {answer!r:.200}")
