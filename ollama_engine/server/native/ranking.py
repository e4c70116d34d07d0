"""Ranking of documents, in the form that llama.cpp's server and Jina's API have."""

from __future__ import annotations

from typing import Any

from ollama_engine.server.large_answers import check_texts
from ollama_engine.server.model_access import leased, named_or_only
from ollama_engine.server.native.schemas import RankRequest
from ollama_engine.server.requests.embedding_inputs import embedding_prompts
from ollama_engine.server.service import Service

__all__ = ["ranking"]


async def ranking(service: Service, request: RankRequest) -> dict[str, Any]:
    """The documents' numbers and scores, the best first.

    "usage" counts the tokens of the query and of each document's text, without those that stand between them.
    """
    check_texts(len(request.documents), "documents")
    documents: Any = await embedding_prompts("documents", request.documents)
    texts = [document if isinstance(document, str) else document.text or "" for document in request.documents]
    name = named_or_only(service, request.model)
    async with leased(service, name) as model:
        scores = await model.rank(request.query, documents)
        per_query = len(await model.tokenize(request.query, add_special=False, parse_special=False))
        counts = [len(await model.tokenize(text, add_special=False, parse_special=False)) for text in texts]
    order = sorted(range(len(texts)), key=lambda number: -scores[number])
    tokens = per_query * len(texts) + sum(counts)
    return {
        "model": name,
        "object": "list",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        "results": [
            {"index": number, "relevance_score": scores[number]}
            | ({"document": {"text": texts[number]}} if request.return_documents else {})
            for number in order[: request.top_n]
        ],
    }
