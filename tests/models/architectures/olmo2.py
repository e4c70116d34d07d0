"""OLMo 2, and OLMo 3 with its local layers."""

from __future__ import annotations

from tests.models.families import SHORT_PERIOD, YARN, Family

_OLMO3 = {
    "sliding_window": 24,
    "rope_parameters": {
        "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        "full_attention": {**YARN, "attention_factor": 1.2079441541679836},
    },
    **SHORT_PERIOD,
}

CASES = (
    Family("olmo2", "Olmo2", {"tie_word_embeddings": True}, seed=2, contract=True),
    Family("olmo2-bf16", "Olmo2", dtype="BF16"),
    Family("olmo3", "Olmo3", _OLMO3),
    Family("olmo3-bf16", "Olmo3", _OLMO3, dtype="BF16", contract=True),
)
