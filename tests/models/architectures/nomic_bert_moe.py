"""Nomic Embed Text 2: the blocks of Jina 3, with experts in every other layer."""

from __future__ import annotations

from tests.models.encoders import XLM_IDS, Case

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
_SETTINGS = {**XLM_IDS, "type_vocab_size": 1, "rope_parameters": _ROPE}

CASES = (
    Case("nomic-bert-moe", "JinaEmbeddingsV3", _SETTINGS, vocabulary="unigram", n_expert=8),
    Case("nomic-bert-moe-bf16", "JinaEmbeddingsV3", _SETTINGS, vocabulary="unigram", n_expert=4, dtype="BF16"),
)
