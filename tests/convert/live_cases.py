"""Tiny random models of transformers that are saved, converted and compared: a new architecture adds its lines.

`settings` are arguments of the configuration class; sizes that a case does not name are those of SIZES.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.models.cases import EXACT

N_CTX = 256
SIZES = {
    "vocab_size": 320, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": N_CTX, "initializer_range": 0.15,
    "pad_token_id": None, "bos_token_id": 317, "eos_token_id": 318,
}  # fmt: skip


@dataclass(frozen=True)
class LiveCase:
    """`family` is the stem of the class names: LlamaConfig, LlamaForCausalLM."""

    name: str
    family: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    dtype: str = "float32"
    """Of the saved weights; the reference computes with them in float32."""
    tolerance: float = EXACT
    seed: int = 1

    def __str__(self) -> str:
        return self.name


_LLAMA3 = {"rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0,
           "high_freq_factor": 4.0, "original_max_position_embeddings": N_CTX // 8}  # fmt: skip

LIVE_CASES = (
    LiveCase("llama", "Llama"),
    LiveCase("llama-bf16", "Llama", dtype="bfloat16"),
    LiveCase("llama-tied-biases", "Llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": False}),
    LiveCase("llama3-factors", "Llama", {"rope_parameters": _LLAMA3, "head_dim": 32}),
    LiveCase("mistral-window", "Mistral", {"sliding_window": 24, "head_dim": 32}),
    LiveCase("mistral-bf16", "Mistral", {"sliding_window": None}, dtype="bfloat16"),
    LiveCase("mixtral", "Mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}, seed=3),
    LiveCase("mixtral-bf16", "Mixtral", {"num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": None},
             dtype="bfloat16", seed=4),
)  # fmt: skip
