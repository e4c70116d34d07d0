"""BERT, and a cross-encoder."""

from __future__ import annotations

from tests.models.encoders import Case

CASES = (
    Case("bert", "Bert"),
    Case("bert-bf16", "Bert", {"type_vocab_size": 1, "num_attention_heads": 2}, dtype="BF16"),
    Case("bert-ranker", "Bert", {"num_labels": 1}, ranks=True),
)
