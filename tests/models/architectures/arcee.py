"""Arcee: no gate, the square of ReLU."""

from __future__ import annotations

from tests.models.families import YARN, Family

CASES = (
    Family("arcee", "Arcee", {}, contract=True),
    Family("arcee-bf16", "Arcee", {"rope_parameters": YARN}, dtype="BF16"),
)
