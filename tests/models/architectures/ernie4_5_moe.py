"""ERNIE 4.5 with experts: in all blocks but the first, or in every second."""

from __future__ import annotations

from tests.models.families import Family

_SETTINGS = {
    "moe_num_experts": 8, "moe_k": 3, "moe_intermediate_size": 32, "moe_num_shared_experts": 2,
    "tie_word_embeddings": False,
}  # fmt: skip

CASES = (
    Family("ernie4_5-moe", "Ernie4_5_Moe", _SETTINGS, contract=True),
    Family(
        "ernie4_5-moe-bf16",
        "Ernie4_5_Moe",
        {**_SETTINGS, "moe_layer_start_index": 0, "moe_layer_interval": 2, "moe_num_shared_experts": 0},
        dtype="BF16",
    ),
)
