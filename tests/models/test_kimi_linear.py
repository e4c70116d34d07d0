"""Kimi Linear's metadata: sizes that do not fit, and experts chosen otherwise, are said when a file is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.models.variants import refuses

HUGE = 2**32 - 1
BAD: list[tuple[dict[str, Any], str]] = [
    ({"attention.kv_lora_rank": 0}, "no size is 0"),
    ({"attention.kv_lora_rank": HUGE}, "attn_kv_a_mqa"),
    ({"attention.kv_lora_rank": None}, "attention.kv_lora_rank"),
    ({"attention.key_length_mla": 32}, "rope.dimension_count 32 is less than attention.key_length_mla 32"),
    ({"attention.value_length_mla": HUGE}, "attn_v_b"),
    ({"attention.head_count_kv": [0, 1, 0]}, "attention.head_count_kv"),
    ({"attention.head_count_kv": [1, 1, 0, 1]}, "blk.0.attn_q"),
    ({"kda.head_dim": 0}, "no size is 0"),
    ({"kda.head_dim": HUGE}, "blk.0.attn_q"),
    ({"ssm.conv_kernel": 1}, "ssm.conv_kernel"),
    ({"ssm.conv_kernel": HUGE}, "ssm.conv_kernel"),
    ({"block_count": 0}, "block_count 0"),
    ({"expert_gating_func": 1}, "expert_gating_func 1 is 2 (sigmoid)"),
    ({"expert_shared_count": 0}, "expert_shared_count 0 is at least 1"),
    ({"expert_shared_count": HUGE}, "ffn_gate_shexp"),
    ({"leading_dense_block_count": HUGE}, "ffn_gate.weight"),
]


def test_bad_metadata(tmp_path: Path) -> None:
    refuses("kimi-linear", tmp_path, BAD)
