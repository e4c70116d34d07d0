"""Llama 1 to 3.x, Mistral and Mixtral. Files written without a converter: `cases` and `variants`."""

from __future__ import annotations

from tests.models.families import LLAMA3, Family

_EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None}

CASES = (
    Family("llama", "Llama", {"head_dim": None}),
    Family("llama-bf16", "Llama", {"head_dim": None}, dtype="BF16"),
    Family("llama-tied-biases", "Llama", {"tie_word_embeddings": True, "attention_bias": True}),
    Family("llama3-factors", "Llama", {"rope_parameters": LLAMA3}, seed=2),
    Family("mistral-window", "Mistral", {"sliding_window": 24}),
    Family("mistral-bf16", "Mistral", {"sliding_window": None}, dtype="BF16"),
    Family("mixtral", "Mixtral", _EXPERTS),
    Family("mixtral-bf16", "Mixtral", {**_EXPERTS, "num_local_experts": 8}, dtype="BF16"),
)
