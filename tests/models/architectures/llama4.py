"""Llama 4; the contract tests run its text part. Chunks and the first step of the temperature are short."""

from __future__ import annotations

from tests.models.families import VISION, Family

_TEXT = {"intermediate_size": 48, "intermediate_size_mlp": 96, "num_hidden_layers": 4, "num_local_experts": 4,
         "attention_chunk_size": 24, "floor_scale": 12}  # fmt: skip
_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 1.0, "original_max_position_embeddings": 32}  # fmt: skip
_SCOUT = {**_TEXT, "num_experts_per_tok": 2, "rope_parameters": _LLAMA3}
_MAVERICK = {**_TEXT, "interleave_moe_layer_step": 2, "use_qk_norm": False}
_VISION = {
    **VISION, "intermediate_size": 128, "vision_output_dim": 40, "projector_input_dim": 40, "projector_output_dim": 40,
}  # fmt: skip

CASES = (
    Family("llama4", "Llama4", {**_TEXT, "interleave_moe_layer_step": 2}, vision=_VISION, contract=True),
    Family("llama4-bf16", "Llama4", _SCOUT, vision=_VISION, dtype="BF16", contract=True),
    Family("llama4-text", "Llama4", _MAVERICK),
)
