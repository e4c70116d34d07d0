"""Routes of OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from datetime import datetime, timezone
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ollama_engine.server import sse
from ollama_engine.server.errors import status_of
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.json_response import json_response
from ollama_engine.server.large_answers import large_response
from ollama_engine.server.openai.chat import chat_completion, chat_events
from ollama_engine.server.openai.completions import completion_events, text_completion
from ollama_engine.server.openai.embeddings import embeddings
from ollama_engine.server.openai.errors import error_body
from ollama_engine.server.openai.responses import response, response_events
from ollama_engine.server.openai.responses_input import ResponseRequest
from ollama_engine.server.openai.schemas import ChatRequest, CompletionRequest, EmbeddingsRequest
from ollama_engine.server.requests.unused_fields import note_body
from ollama_engine.server.service import Service, service_of
from ollama_engine.server.streaming import streamed, while_connected
from ollama_engine.store.stored_model import StoredModel

__all__ = ["router"]

router = APIRouter(prefix="/v1", tags=["OpenAI"], route_class=JsonRoute)

TheService = Annotated[Service, Depends(service_of)]
Body = TypeVar("Body", ChatRequest, CompletionRequest, ResponseRequest)


@router.get("/models")
async def list_models(service: TheService) -> dict[str, Any]:
    """The models of the library, the newest first."""
    models = [_model(stored) for stored in await asyncio.to_thread(service.library.list)]
    names = [model["id"] for model in models]
    ends = {"first_id": names[0] if names else None, "last_id": names[-1] if names else None, "has_more": False}
    return {"object": "list", "data": models, **ends}


@router.get("/models/{name:path}")
async def show_model(name: str, service: TheService) -> dict[str, Any]:
    """A model by its name."""
    return _model(await asyncio.to_thread(service.library.find, name))


@router.post("/chat/completions")
async def create_chat_completion(body: ChatRequest, request: Request, service: TheService) -> Response:
    """The assistant's next message."""
    return await respond(request, service, body, chat_completion, chat_events)


@router.post("/completions")
async def create_completion(body: CompletionRequest, request: Request, service: TheService) -> Response:
    """The continuation of a text, without a chat template."""
    return await respond(request, service, body, text_completion, completion_events)


@router.post("/embeddings")
async def create_embeddings(body: EmbeddingsRequest, request: Request, service: TheService) -> Response:
    """Vectors of texts."""
    note_body(request, body, body.model)
    return await large_response(await while_connected(request, embeddings(service, body)))


@router.post("/responses")
async def create_response(body: ResponseRequest, request: Request, service: TheService) -> Response:
    """The answer to a conversation, as output items."""
    return await respond(request, service, body, response, response_events)


async def respond(
    request: Request, service: Service, body: Body,
    whole: Callable[[Service, Body], Coroutine[Any, Any, dict[str, Any]]],
    events: Callable[[Service, Body], AsyncGenerator[bytes, None]],
) -> Response:  # fmt: skip
    """The events of an answer where the request streams, else its whole."""
    note_body(request, body, body.model)
    if body.stream:
        return await streamed(events(service, body), sse.MEDIA_TYPE, last_words)
    return json_response(await while_connected(request, whole(service, body)))


def last_words(error: Exception) -> bytes:
    """An error in a stream that has begun."""
    return sse.event(error_body(error, status_of(error)))


def _model(stored: StoredModel) -> dict[str, Any]:
    """A model in OpenAI's form and in Anthropic's: their clients ask at the same address."""
    namespace = stored.name.rpartition("/")[0] or "library"
    of_openai = {"object": "model", "created": int(stored.modified), "owned_by": namespace}
    created = datetime.fromtimestamp(int(stored.modified), timezone.utc).isoformat().replace("+00:00", "Z")
    return {"id": stored.name, **of_openai, "type": "model", "display_name": stored.name, "created_at": created}
