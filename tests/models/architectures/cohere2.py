"""Command R7B and Command A: local layers."""

from __future__ import annotations

from tests.models.families import SHORT_PERIOD, Family

_SETTINGS = {"sliding_window": 24, **SHORT_PERIOD}

CASES = (
    Family("cohere2", "Cohere2", _SETTINGS, seed=2, contract=True),
    Family("cohere2-bf16", "Cohere2", _SETTINGS, dtype="BF16"),
)
