"""Ranking of documents, in the form that llama.cpp's server and Jina's API have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.server.errors import ApiError
from ollama_engine.server.large_answers import check_texts
from ollama_engine.server.model_access import leased, named_or_only
from ollama_engine.server.native.schemas import RankRequest
from ollama_engine.server.service import Service

__all__ = ["ranking"]


async def ranking(service: Service, request: RankRequest) -> dict[str, Any]:
    """The documents' numbers and scores, the best first.

    "usage" counts the tokens of the query and of each document, without those that stand between them.
    """
    check_texts(len(request.documents), "documents")
    texts = [_text(number, document) for number, document in enumerate(request.documents)]
    name = named_or_only(service, request.model)
    async with leased(service, name) as model:
        scores = await model.rank(request.query, texts)
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


def _text(number: int, document: str | Mapping[str, Any]) -> str:
    text = document if isinstance(document, str) else document.get("text")
    if not isinstance(text, str):
        where = f"documents[{number}]"
        raise ApiError(400, f'{where}: expected a text or {{"text": ...}}, got {document!r:.60}', param=where)
    return text
