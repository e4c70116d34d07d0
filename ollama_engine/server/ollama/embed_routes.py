"""POST /api/embed, and its older form /api/embeddings."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import JSONResponse, Response

from ollama_engine.server.durations import nanoseconds
from ollama_engine.server.errors import ApiError
from ollama_engine.server.json_bodies import JsonRoute
from ollama_engine.server.large_answers import check_texts, large_response
from ollama_engine.server.ollama.answers import OllamaCall, read_call
from ollama_engine.server.ollama.schemas import EmbeddingsRequest, EmbedRequest
from ollama_engine.server.request_log import note
from ollama_engine.server.requests.embedding_inputs import embedding_prompts
from ollama_engine.server.service import Service, service_of
from ollama_engine.server.streaming import while_connected

if TYPE_CHECKING:
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.runner.request.prompts import Prompt

__all__ = ["router"]

router = APIRouter(tags=["ollama"], route_class=JsonRoute)


@router.post("/api/embed")
async def embed(body: EmbedRequest, request: Request, service: Annotated[Service, Depends(service_of)]) -> Response:
    """Embeddings of texts, each of length 1."""
    call = await read_call(service, body, request)
    listed = body.input if isinstance(body.input, list) else [body.input] if body.input else []
    check_texts(len(listed), "input")
    texts = await embedding_prompts("input", listed)
    if body.dimensions is not None and body.dimensions < 0:
        raise ApiError(400, f"dimensions must not be negative, got {body.dimensions}")
    answer = await while_connected(request, embedded(service, call, body, texts))
    note(request, texts=len(texts), prompt_tokens=answer["prompt_eval_count"])
    return await large_response(answer)


async def embedded(service: Service, call: OllamaCall, body: EmbedRequest, texts: list[Prompt]) -> dict[str, Any]:
    """The vectors of texts. Raises as the engine does."""
    async with service.manager.lease(call.stored, call.options.runner, call.keep_alive) as lease:
        results = []
        if texts:
            results = await lease.model.embed(
                texts, normalize=True, dimensions=body.dimensions or None, truncate=body.truncate is not False,
                prompt_name=body.prompt_name, task=body.task,
            )  # fmt: skip
        note_dropped(call, results)
        return {
            "model": call.name,
            "embeddings": [embedding.vector for embedding in results],
            "total_duration": nanoseconds(time.perf_counter() - call.started),
            "load_duration": nanoseconds(lease.load_seconds),
            "prompt_eval_count": sum(embedding.prompt_tokens - embedding.dropped_tokens for embedding in results),
        }


@router.post("/api/embeddings")
async def embeddings(
    body: EmbeddingsRequest, request: Request, service: Annotated[Service, Depends(service_of)]
) -> Response:
    """The embedding of a text, as long as the model makes it."""
    call = await read_call(service, body, request)
    return JSONResponse(await while_connected(request, embedded_prompt(service, call, body.prompt)))


async def embedded_prompt(service: Service, call: OllamaCall, prompt: str) -> dict[str, Any]:
    """The vector of a text. Raises as the engine does."""
    async with service.manager.lease(call.stored, call.options.runner, call.keep_alive) as lease:
        if not prompt:
            return {"embedding": []}
        (result,) = await lease.model.embed([prompt], normalize=False, dimensions=None, truncate=True)
        note_dropped(call, [result])
        return {"embedding": result.vector.tolist()}


def note_dropped(call: OllamaCall, results: Sequence[Embedding]) -> None:
    """Have the log say how many tokens of texts did not fit."""
    dropped = sum(embedding.dropped_tokens for embedding in results)
    if dropped:
        call.note(dropped_tokens=dropped)
