"""Jina Embeddings 3."""

from __future__ import annotations

from tests.models.encoders import XLM_IDS, Case

_ROPE = {"rope_type": "default", "rope_theta": 500.0}

CASES = (
    Case("jina-bert-v3", "JinaEmbeddingsV3", XLM_IDS, vocabulary="unigram"),
    Case("jina-bert-v3-bf16", "JinaEmbeddingsV3", {**XLM_IDS, "rope_parameters": _ROPE}, vocabulary="unigram",
         dtype="BF16"),
)  # fmt: skip
