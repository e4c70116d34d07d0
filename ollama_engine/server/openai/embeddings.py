"""Embeddings, as numbers or as base64 of their float32."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

from ollama_engine.server.large_answers import check_texts
from ollama_engine.server.model_access import leased
from ollama_engine.server.openai.completions import prompts_of
from ollama_engine.server.openai.schemas import EmbeddingsRequest

if TYPE_CHECKING:
    from ollama_engine.runner.embed.pooling import FloatArray
    from ollama_engine.runner.embed.results import Embedding
    from ollama_engine.server.service import Service

__all__ = ["embeddings"]


async def embeddings(service: Service, request: EmbeddingsRequest) -> dict[str, Any]:
    """Vectors of length 1, as arrays. A text longer than the context raises ContextOverflowError."""
    texts = prompts_of(request.input, "input")
    check_texts(len(texts), "input")
    as_base64 = request.encoding_format == "base64"
    async with leased(service, request.model, "embedding") as model:
        results = await model.embed(
            texts, normalize=True, dimensions=request.dimensions, truncate=False, prompt_name=request.prompt_name,
            task=request.task,
        )  # fmt: skip
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


def _written(embedding: Embedding, *, as_base64: bool) -> str | FloatArray:
    vector = embedding.vector.astype("<f4", copy=False)
    return b64encode(vector.tobytes()).decode() if as_base64 else vector
