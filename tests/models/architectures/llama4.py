"""Llama 4, which is converted and not run yet."""

from __future__ import annotations

from tests.models.families import VISION, Family

_TEXT = {"intermediate_size": 48, "intermediate_size_mlp": 96, "num_hidden_layers": 4, "num_local_experts": 4,
         "interleave_moe_layer_step": 2}  # fmt: skip
_VISION = {
    **VISION, "intermediate_size": 128, "vision_output_dim": 40, "projector_input_dim": 40, "projector_output_dim": 40,
}  # fmt: skip

CASES = (
    Family("llama4", "Llama4", _TEXT, vision=_VISION),
    Family("llama4-bf16", "Llama4", _TEXT, vision=_VISION, dtype="BF16"),
)
