"""GTE, of which Arctic Embed 2 M is made."""

from __future__ import annotations

from tests.models.encoders import XLM_IDS, Case

_ROPE = {"rope_type": "default", "rope_theta": 500.0}

CASES = (
    Case("gte", "Gte", XLM_IDS, vocabulary="unigram"),
    Case("gte-bf16", "Gte", {"type_vocab_size": 0, "rope_parameters": _ROPE}, dtype="BF16"),
    Case("gte-ranker", "Gte", {**XLM_IDS, "num_labels": 1}, ranks=True, vocabulary="unigram"),
)
