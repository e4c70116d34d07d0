"""Seed-OSS: heads larger than their share."""

from __future__ import annotations

from tests.models.families import Family

CASES = (
    Family("seed_oss", "SeedOss", {"head_dim": 64}, contract=True),
    Family("seed_oss-bf16", "SeedOss", {"head_dim": 64}, dtype="BF16"),
)
