"""Assistants of Gemma 4: for a model whose last layers share keys and values, with centroids; and for one without."""

from __future__ import annotations

from tests.models.assistants import Case

_TEXT = {"num_hidden_layers": 3, "layer_types": ["sliding_attention"] * 2 + ["full_attention"], "hidden_size": 48}
_CENTROIDS = {"use_ordered_embeddings": True, "num_centroids": 16, "centroid_intermediate_top_k": 4}

CASES = (
    Case("gemma4-assistant", "gemma4", _TEXT),
    Case("gemma4-assistant-small", "gemma4-small", _TEXT, _CENTROIDS),
    Case("gemma4-assistant-unified", "gemma4-unified", _TEXT, dtype="BF16"),
)
