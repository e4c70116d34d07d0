"""Gemma 2."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {"sliding_window": 24, "query_pre_attn_scalar": 40, "attn_logit_softcapping": 5.0,
             "final_logit_softcapping": 30.0}  # fmt: skip

CASES = (
    Family("gemma2", "Gemma2", _SETTINGS, norms=0.0, contract=True),
    Family("gemma2-bf16", "Gemma2", _SETTINGS, norms=0.0, dtype="BF16"),
)
