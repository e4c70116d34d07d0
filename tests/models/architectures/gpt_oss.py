"""gpt-oss: experts, windows, sinks."""

from __future__ import annotations

from tests.models.families import YARN, Family

_SETTINGS = {
    "num_local_experts": 8, "num_experts_per_tok": 3, "sliding_window": 24, "tie_word_embeddings": True,
    "rope_parameters": {**YARN, "truncate": False},
}  # fmt: skip

CASES = (
    Family("gpt-oss", "GptOss", _SETTINGS, contract=True),
    Family("gpt-oss-bf16", "GptOss", _SETTINGS, dtype="BF16"),
)
