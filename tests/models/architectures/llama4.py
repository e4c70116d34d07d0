"""Llama 4; the contract tests run its text part. Chunks and the first step of the temperature are short."""

from __future__ import annotations

from tests.models.families import LLAMA3, VISION, Family

_SIZES = {"intermediate_size": 48, "intermediate_size_mlp": 96, "num_hidden_layers": 4, "num_local_experts": 4,
          "attention_chunk_size": 24, "floor_scale": 12}  # fmt: skip
_TEXT = {**_SIZES, "interleave_moe_layer_step": 2}
_LLAMA3 = {**LLAMA3, "high_freq_factor": 1.0}
_VISION = {
    **VISION, "intermediate_size": 128, "vision_output_dim": 40, "projector_input_dim": 40, "projector_output_dim": 40,
}  # fmt: skip

CASES = (
    Family("llama4", "Llama4", _TEXT, vision=_VISION, contract=True, seed=2),
    Family("llama4-bf16", "Llama4", _TEXT, vision=_VISION, dtype="BF16"),
    # Every layer has experts, two of which a token uses; rotations are slowed down as in Scout, by a step.
    Family("llama4-scout", "Llama4", {**_SIZES, "num_experts_per_tok": 2, "rope_parameters": _LLAMA3}, contract=True),
    # Queries and keys are not normalized, as in Maverick.
    # Dense, tied, and with positions in all layers and no chunks, as in MobileLLM.
    Family(
        "llama4-dense",
        "Llama4",
        {
            **_SIZES,
            "num_local_experts": 0,
            "interleave_moe_layer_step": 0,
            "moe_layers": [],
            "no_rope_layers": [1] * 4,
            "layer_types": ["full_attention"] * 4,
            "tie_word_embeddings": True,
        },
    ),
    Family("llama4-maverick", "Llama4", {**_TEXT, "use_qk_norm": False}),
)
