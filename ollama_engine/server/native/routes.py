"""The engine's own routes, most of them as llama.cpp's server names them: ids of texts, prompts of conversations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from ollama_engine.segments import Media, Text
from ollama_engine.server import sse
from ollama_engine.server.errors import ApiError
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.large_answers import large_response
from ollama_engine.server.model_access import leased, named_or_only
from ollama_engine.server.native.observing import router as observing
from ollama_engine.server.native.ranking import ranking
from ollama_engine.server.native.schemas import DetokenizeRequest, RankRequest, TemplateRequest, TokenizeRequest
from ollama_engine.server.requests.messages import as_dicts, engine_messages, engine_tools
from ollama_engine.server.requests.stored_defaults import conversation
from ollama_engine.server.service import Service, service_of
from ollama_engine.server.streaming import while_connected

__all__ = ["router"]

router = APIRouter(tags=["native"], route_class=JsonRoute)
router.include_router(observing)

TheService = Annotated[Service, Depends(service_of)]


@router.post("/tokenize")
async def tokenize(body: TokenizeRequest, service: TheService) -> Response:
    """The token ids of a text; with pieces, objects with an id and a text, or bytes that are a part of a character."""
    async with leased(service, named_or_only(service, body.model)) as model:
        ids = await model.tokenize(body.content, add_special=body.add_special, parse_special=body.parse_special)
        if not body.with_pieces:
            return await large_response({"tokens": ids})
        texts = await model.token_bytes(ids)
    return await asyncio.to_thread(_pieces, ids, texts)


@router.post("/detokenize")
async def detokenize(body: DetokenizeRequest, service: TheService) -> Response:
    """The text of token ids."""
    async with leased(service, named_or_only(service, body.model)) as model:
        return _json({"content": await model.detokenize(body.tokens)})


@router.post("/apply-template")
async def apply_template(body: TemplateRequest, service: TheService) -> Response:
    """The prompt that a conversation becomes."""
    async with leased(service, named_or_only(service, body.model)) as model:
        messages = conversation(model.stored, engine_messages(as_dicts(body.messages)))
        options = {"tools": engine_tools(body.tools), "template_variables": body.chat_template_kwargs}
        segments = await model.apply_template(
            messages,
            add_generation_prompt=body.add_generation_prompt,
            **{name: value for name, value in options.items() if value is not None},
        )
    if any(isinstance(segment, Media) for segment in segments):
        raise ApiError(400, "messages: an image has no text to show", param="messages")
    return _json({"prompt": "".join(segment.text for segment in segments if isinstance(segment, Text))})


@router.post("/rerank")
@router.post("/v1/rerank")
@router.post("/v1/reranking", include_in_schema=False)
@router.post("/reranking", include_in_schema=False)
async def rerank(body: RankRequest, request: Request, service: TheService) -> Response:
    """How well documents answer a query, the best first. For rerankers."""
    return _json(await while_connected(request, ranking(service, body)))


def _json(body: Any) -> Response:
    return Response(sse.json_bytes(body), media_type="application/json")


def _pieces(ids: Sequence[int], texts: Sequence[bytes]) -> Response:
    return _json({"tokens": [{"id": id_, "piece": _piece(text)} for id_, text in zip(ids, texts, strict=True)]})


def _piece(text: bytes) -> str | list[int]:
    try:
        return text.decode()
    except UnicodeDecodeError:
        return list(text)
