"""Nemotron, dense: half of each head rotates."""

from __future__ import annotations

from tests.models.families import Family

CASES = (
    Family("nemotron", "Nemotron", {}, contract=True, norms=0.0),
    Family("nemotron-bf16", "Nemotron", {"mlp_bias": True, "attention_bias": True}, dtype="BF16", norms=0.0, seed=2),
)
