"""Granite: scaled embeddings, residuals, scores and logits; and the dense models of the hybrid class."""

from __future__ import annotations

from tests.models.families import Family

SCALES = {
    "head_dim": None, "hidden_size": 128, "embedding_multiplier": 3.0, "residual_multiplier": 0.7,
    "attention_multiplier": 0.2, "logits_scaling": 2.0,
}  # fmt: skip
ATTENDING = {
    **SCALES, "layer_types": ["full_attention"] * 3, "mamba_n_heads": 4, "hidden_size": 64,
    "shared_intermediate_size": 48,
}  # fmt: skip

CASES = (
    Family("granite", "Granite", SCALES, contract=True),
    Family("granite-bf16", "Granite", {**SCALES, "attention_bias": True, "tie_word_embeddings": True}, dtype="BF16",
        embeddings=0.05),
    Family("granite4-dense", "GraniteMoeHybrid", {**ATTENDING, "num_local_experts": 0,
        "position_embedding_type": "rope"}, seed=2),
)  # fmt: skip
