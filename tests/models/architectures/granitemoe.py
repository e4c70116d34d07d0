"""Granite with experts, and with one that all tokens share."""

from __future__ import annotations

from tests.models.architectures.granite import ATTENDING, SCALES
from tests.models.families import Family

_EXPERTS = {"num_local_experts": 8, "num_experts_per_tok": 3}

CASES = (
    Family("granitemoe", "GraniteMoe", {**SCALES, **_EXPERTS}, contract=True),
    Family("granitemoe-bf16", "GraniteMoe", {**SCALES, **_EXPERTS}, dtype="BF16"),
    Family("granite4-experts", "GraniteMoeHybrid", {**ATTENDING, **_EXPERTS}),
)
