"""Routes of Anthropic's API."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ollama_engine.server import sse
from ollama_engine.server.anthropic.answering import count_tokens, message, message_events
from ollama_engine.server.anthropic.errors import error_body
from ollama_engine.server.anthropic.schemas import CountRequest, MessagesRequest
from ollama_engine.server.errors import status_of
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.requests.unused_fields import note_body
from ollama_engine.server.service import Service, service_of
from ollama_engine.server.streaming import streamed, while_connected

__all__ = ["router"]

router = APIRouter(prefix="/v1/messages", tags=["Anthropic"], route_class=JsonRoute)

TheService = Annotated[Service, Depends(service_of)]


@router.post("")
async def create_message(body: MessagesRequest, request: Request, service: TheService) -> Response:
    """The assistant's next message."""
    note_body(request, body, body.model)
    if body.stream:
        return await streamed(message_events(service, body), sse.MEDIA_TYPE, last_words)
    found = await while_connected(request, message(service, body))
    return Response(sse.json_bytes(found), media_type="application/json")


@router.post("/count_tokens")
async def count(body: CountRequest, request: Request, service: TheService) -> dict[str, int]:
    """How many tokens a conversation has as a prompt."""
    return await while_connected(request, count_tokens(service, body))


def last_words(error: Exception) -> bytes:
    """An error in a stream that has begun."""
    return sse.event(error_body(error, status_of(error)), "error")
