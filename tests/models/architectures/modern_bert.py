"""ModernBERT, and a cross-encoder."""

from __future__ import annotations

from tests.models.encoders import Case

_LOCAL = {"local_attention": 24, "bos_token_id": 318, "cls_token_id": 318, "eos_token_id": 319, "sep_token_id": 319,
          "pad_token_id": None}  # fmt: skip
_SILU = {**_LOCAL, "hidden_activation": "silu", "num_hidden_layers": 5}
_RANKER = {**_LOCAL, "num_labels": 1, "classifier_pooling": "mean"}

CASES = (
    Case("modern-bert", "ModernBert", _LOCAL, vocabulary="bpe"),
    Case("modern-bert-bf16", "ModernBert", _SILU, dtype="BF16", vocabulary="bpe"),
    Case("modern-bert-ranker", "ModernBert", _RANKER, ranks=True, vocabulary="bpe"),
)
