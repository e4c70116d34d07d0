"""Embeddings, as numbers or as base64 of their float32."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from ollama_engine.server.errors import ApiError
from ollama_engine.server.large_answers import check_texts
from ollama_engine.server.model_access import leased
from ollama_engine.server.openai.completions import prompts_of
from ollama_engine.server.openai.schemas import EmbeddingsRequest
from ollama_engine.server.requests.embedding_inputs import EmbeddingInput, embedding_prompts
from ollama_engine.server.requests.messages import as_dicts, engine_messages
from ollama_engine.server.requests.stored_defaults import conversation

if TYPE_CHECKING:
    from ollama_engine.runner.embed.pooling import FloatArray
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.runner.request.prompts import Prompt
    from ollama_engine.server.service import Service

__all__ = ["embeddings"]


async def embeddings(service: Service, request: EmbeddingsRequest) -> dict[str, Any]:
    """Vectors of length 1, as arrays. A text longer than the context raises ContextOverflowError."""
    if (request.input is None) == (request.messages is None):
        raise ApiError(400, "input: expected input or messages, one of the two", param="input")
    _refuse_ignored(request)
    as_base64 = request.encoding_format == "base64"
    texts = [] if request.input is None else await _inputs(request.input)
    async with leased(service, request.model, "embedding") as model:
        named = request.prompt_name
        if request.messages is not None:
            messages = conversation(model.stored, engine_messages(as_dicts(request.messages)))
            ends = {"continue_final_message": True} if request.continue_final_message else {}
            texts = [await model.apply_template(messages, add_generation_prompt=request.add_generation_prompt, **ends)]
            named = ""  # the conversation says what it is for
        results = await model.embed(
            texts, normalize=True, dimensions=request.dimensions, truncate=False, prompt_name=named, task=request.task
        )
    tokens = sum(embedding.prompt_tokens for embedding in results)
    return {
        "object": "list",
        "data": [
            {"object": "embedding", "index": number, "embedding": _written(embedding, as_base64=as_base64)}
            for number, embedding in enumerate(results)
        ],
        "model": request.model,
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def _refuse_ignored(request: EmbeddingsRequest) -> None:
    """Raise ApiError for options of the form that was not given."""
    given, others = "messages", ["prompt_name"]
    if request.messages is None:
        given, others = "input", ["add_generation_prompt", "continue_final_message"]
    for name in others:
        if getattr(request, name):
            raise ApiError(400, f"{name} does not go with {given}; leave it out", param=name)


async def _inputs(given: Any) -> list[Prompt]:
    """Raises ApiError for an empty list, and more texts than one request may have."""
    listed: list[Any] = [given] if isinstance(given, EmbeddingInput) else list(prompts_of(given, "input"))
    check_texts(len(listed), "input")
    return await embedding_prompts("input", listed)


def _written(embedding: Embedding, *, as_base64: bool) -> str | FloatArray:
    vector = embedding.vector.astype("<f4", copy=False)
    return b64encode(vector.tobytes()).decode() if as_base64 else vector
