"""MiniMax M2."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {"num_local_experts": 8, "num_experts_per_tok": 3, "rotary_dim": 16}

CASES = (
    Family("minimax-m2", "MiniMaxM2", _SETTINGS, contract=True),
    Family("minimax-m2-bf16", "MiniMaxM2", _SETTINGS, dtype="BF16"),
)
