"""Qwen3-VL with experts; the contract tests run its text part."""

from __future__ import annotations

from tests.models.architectures.qwen3vl import ROPE, TIED, UNTIED, VISION
from tests.models.families import EXPERTS, Family

_TEXT = {**EXPERTS, **ROPE, "moe_intermediate_size": 24}

CASES = (
    Family("qwen3vlmoe", "Qwen3VLMoe", {**_TEXT, "tie_word_embeddings": True}, vision=VISION, outer=TIED,
           contract=True),
    Family("qwen3vlmoe-bf16", "Qwen3VLMoe", {**_TEXT, "tie_word_embeddings": False}, vision=VISION, outer=UNTIED,
           dtype="BF16"),
)  # fmt: skip
