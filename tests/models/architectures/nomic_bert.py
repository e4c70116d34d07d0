"""nomic-embed-text."""

from __future__ import annotations

from tests.models.encoders import Case

_ROPE = {"rope_type": "default", "rope_theta": 500.0}

CASES = (
    Case("nomic-bert", "NomicBert"),
    Case("nomic-bert-bf16", "NomicBert", {"rope_parameters": _ROPE}, dtype="BF16"),
)
