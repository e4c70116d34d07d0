"""Apertus: an activation with numbers of each layer."""

from __future__ import annotations

from tests.models.families import Family

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}

CASES = (
    Family("apertus", "Apertus", {"rope_parameters": _ROPE}, contract=True),
    Family("apertus-bf16", "Apertus", {}, dtype="BF16"),
)
