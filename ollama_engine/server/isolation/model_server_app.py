"""The app of a model's process: one model, loaded and asked by JSON over HTTP."""

from __future__ import annotations

import json
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ollama_engine.errors import ConfigError, EngineError
from ollama_engine.server.errors import ClientGoneError
from ollama_engine.server.isolation.codec import decode, encode
from ollama_engine.server.isolation.completion import completion, embedding
from ollama_engine.server.isolation.crossing import beside, content_of, value_of
from ollama_engine.server.isolation.engine_calls import call_engine, engine_stream
from ollama_engine.server.isolation.failures import sent_error
from ollama_engine.server.isolation.hosted_model import HostedModel
from ollama_engine.server.json_bodies import JsonRequest
from ollama_engine.server.served import AnswerStream, ServedModel
from ollama_engine.server.streaming import streamed, while_connected

__all__ = ["CALLS", "call_method", "last_line", "lines", "runner_app", "start"]

CALLS = ("embed", "rank", "tokenize", "detokenize", "token_bytes", "apply_template", "metrics", "slots", "steer",
         "steps", "trace")  # fmt: skip
"""Methods of ServedModel that have one result."""

STREAMS = ("generate", "chat")

NDJSON = "application/x-ndjson"

Handler = Callable[[Request], Awaitable[Response]]


def runner_app(hosted: HostedModel, token: str = "") -> Starlette:
    """The app. With a token, requests have to bear it: "Authorization: Bearer TOKEN"."""

    async def health(_: Request) -> Response:
        return JSONResponse({"status": hosted.status.value, "progress": hosted.progress})

    async def info(_: Request) -> Response:
        return JSONResponse(hosted.devices())

    async def load(request: Request) -> Response:
        return JSONResponse(await hosted.operate(await body_of(request)))

    async def ask(request: Request) -> Response:
        body = await body_of(request)
        return await streamed(lines(await start(hosted.model(), body)), NDJSON, last_line)

    async def call(request: Request) -> Response:
        body = await body_of(request)
        return await result(await call_method(hosted.model(), body))

    async def method(request: Request) -> Response:
        body = await body_of(request)
        return await result(await while_connected(request, call_engine(hosted.engine(), body)))

    async def pieces(request: Request) -> Response:
        body = await body_of(request)
        return await streamed(lines(await engine_stream(hosted.engine(), body)), NDJSON, last_line)

    async def complete(request: Request) -> Response:
        chunks = completion(hosted.model(), await body_of(request))
        return await streamed(chunks, NDJSON, lambda error: json.dumps({"error": str(error)}).encode() + b"\n")

    async def embed(request: Request) -> Response:
        return JSONResponse(await embedding(hosted.model(), await body_of(request)))

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await hosted.close()

    routes = [
        Route("/health", guarded(health, token)),
        Route("/info", guarded(info, token)),
        Route("/load", guarded(load, token), methods=["POST"]),
        Route("/completion", guarded(complete, token), methods=["POST"]),
        Route("/embedding", guarded(embed, token), methods=["POST"]),
        Route("/engine/stream", guarded(ask, token), methods=["POST"]),
        Route("/engine/call", guarded(call, token), methods=["POST"]),
        Route("/engine/method", guarded(method, token), methods=["POST"]),
        Route("/engine/pieces", guarded(pieces, token), methods=["POST"]),
    ]
    refused = {EngineError: failure, OSError: failure, ClientGoneError: failure}
    return Starlette(routes=routes, lifespan=lifespan, exception_handlers=refused)


def guarded(handler: Handler, token: str) -> Handler:
    """The handler behind the token. Its errors become JSON: `error` for people, `failure` for the other end."""

    async def answer(request: Request) -> Response:
        given = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token and not secrets.compare_digest(given.encode(), token.encode()):
            return JSONResponse({"error": "this runner belongs to another program: its token is missing"}, 401)
        try:
            return await handler(request)
        except Exception as error:  # whatever it is, the other end gets it
            return await failure(request, error)

    return answer


async def failure(_: Request, error: Exception) -> Response:
    """The response to a request that failed before anything was sent."""
    status = error.http_status if isinstance(error, EngineError) else 500
    return JSONResponse({"error": str(error), "failure": sent_error(error)}, status)


async def body_of(request: Request) -> dict[str, Any]:
    """The JSON object of a request. Raises ConfigError for anything else."""
    try:
        body = await value_of(await JsonRequest(request.scope, request.receive).body())
    except ValueError as error:
        raise ConfigError(f"the body is a JSON object: {error}") from None
    if not isinstance(body, dict):
        raise ConfigError(f"the body is a JSON object, got {type(body).__name__}")
    return body


async def result(encoded: Any) -> Response:
    """The response that has the result of a call."""
    content = await content_of({"result": encoded})
    if isinstance(content, bytes):
        return Response(content, media_type="application/json")
    return StreamingResponse(content, media_type="application/json")


async def start(model: ServedModel, body: dict[str, Any]) -> AnswerStream[Any]:
    """Begin an answer. Raises what the engine refuses at once."""
    method = _method(model, body, STREAMS)
    args, kwargs = await beside(decode, [body["args"], body["kwargs"]])
    stream: AnswerStream[Any] = method(*args, **kwargs)
    return stream


async def call_method(model: ServedModel, body: dict[str, Any]) -> Any:
    """The encoded result of a method that has one. Raises what it raises."""
    method = _method(model, body, CALLS)
    args, kwargs = await beside(decode, [body["args"], body["kwargs"]])
    return await beside(encode, await method(*args, **kwargs))


def _method(model: ServedModel, body: dict[str, Any], allowed: tuple[str, ...]) -> Callable[..., Any]:
    name = body.get("method")
    if name not in allowed:
        raise ConfigError(f"a method is one of {', '.join(allowed)}, got {name!r:.40}")
    method: Callable[..., Any] = getattr(model, name)
    return method


async def lines(stream: AnswerStream[Any]) -> AsyncGenerator[bytes, None]:
    """Chunks as JSON lines. Closing this cancels the request."""
    async with aclosing(stream):
        async for chunk in stream:
            yield json.dumps(encode(chunk), separators=(",", ":")).encode() + b"\n"


def last_line(error: Exception) -> bytes:
    """An error that ends an answer early, as a line."""
    return json.dumps({"$failure": sent_error(error)}).encode() + b"\n"
