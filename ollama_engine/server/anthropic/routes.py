"""Routes of Anthropic's API."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ollama_engine.server import sse
from ollama_engine.server.anthropic.answering import count_tokens, message, message_events
from ollama_engine.server.anthropic.errors import error_body
from ollama_engine.server.anthropic.schemas import CountRequest, MessagesRequest
from ollama_engine.server.errors import status_of
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.request_log import note_names
from ollama_engine.server.requests.unused_fields import note_body, unused_fields
from ollama_engine.server.service import Service, service_of
from ollama_engine.server.streaming import streamed, while_connected
from ollama_engine.store.showing import model_capabilities, short_facts
from ollama_engine.store.stored_model import StoredModel

__all__ = ["router"]

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"], route_class=JsonRoute)

TheService = Annotated[Service, Depends(service_of)]
Body = TypeVar("Body", CountRequest, MessagesRequest)


@router.post("")
async def create_message(body: MessagesRequest, request: Request, service: TheService) -> Response:
    """The assistant's next message."""
    body = await _as_it_reasons(request, service, body)
    if body.stream:
        return await streamed(message_events(service, body), sse.MEDIA_TYPE, last_words)
    found = await while_connected(request, message(service, body))
    return Response(sse.json_bytes(found), media_type="application/json")


@router.post("/count_tokens")
async def count(body: CountRequest, request: Request, service: TheService) -> dict[str, int]:
    """How many tokens a conversation has as a prompt."""
    body = await _as_it_reasons(request, service, body)
    return await while_connected(request, count_tokens(service, body))


async def _as_it_reasons(request: Request, service: Service, body: Body) -> Body:
    """The body, without `thinking` where the model does not reason: clients ask every model for it. The log says so."""
    note_body(request, body, body.model)
    if body.thinking is None or body.thinking.type == "disabled":
        return body
    if await asyncio.to_thread(_reasons, service.library.find, body.model):
        return body
    note_names(request, ignored=[*unused_fields(body), "thinking"])
    return body.model_copy(update={"thinking": None})


def _reasons(find: Callable[[str], StoredModel], name: str) -> bool:
    """Whether a model reasons; True for a broken one, whose load says more."""
    stored = find(name)
    facts = short_facts(stored)
    return facts is None or "thinking" in model_capabilities(stored, facts)


def last_words(error: Exception) -> bytes:
    """An error in a stream that has begun."""
    return sse.event(error_body(error, status_of(error)), "error")
