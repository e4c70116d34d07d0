"""Hunyuan, dense, whose base may be stretched."""

from __future__ import annotations

from tests.models.families import Family

CASES = (
    Family("hunyuan-dense", "HunYuanDenseV1", {}, contract=True),
    Family(
        "hunyuan-dense-bf16",
        "HunYuanDenseV1",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "alpha": 50.0, "factor": 1.0}},
        dtype="BF16",
    ),
)
