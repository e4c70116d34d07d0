"""Mistral Small 3.1 and later; the contract tests run its text part."""

from __future__ import annotations

from tests.models.families import VISION, Family

_TEXT = {"model_type": "mistral", "sliding_window": None}
_VISION = {**VISION, "model_type": "pixtral", "num_attention_heads": 2, "hidden_act": "silu"}

_OUTER = {"image_break_token_id": 12, "image_end_token_id": 13}
"""Which the vocabulary of these cases does not tell."""
_FAR = {
    "model_type": "ministral3", "sliding_window": None,
    "rope_parameters": {
        "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 32.0, "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 0.6, "llama_4_scaling_beta": 0.5,
    },
}  # fmt: skip
"""Ministral 3, with a prompt several times as long as the original context."""

CASES = (
    Family("mistral3", "Mistral3", _TEXT, vision=_VISION, outer=_OUTER),
    Family("mistral3-bf16", "Mistral3", _TEXT, vision=_VISION, outer=_OUTER, dtype="BF16", contract=True),
    Family("mistral3-ministral", "Mistral3", _FAR, vision=_VISION, outer=_OUTER),
)
