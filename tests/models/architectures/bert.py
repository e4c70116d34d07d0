"""BERT, and a cross-encoder; RoBERTa and XLM-R, whose positions begin behind the padding token's number."""

from __future__ import annotations

from tests.models.encoders import XLM_IDS, Case

_XLM = {**XLM_IDS, "type_vocab_size": 1}

CASES = (
    Case("bert", "Bert"),
    Case("bert-bf16", "Bert", {"type_vocab_size": 1, "num_attention_heads": 2}, dtype="BF16"),
    Case("bert-ranker", "Bert", {"num_labels": 1}, ranks=True),
    Case("xlm-roberta", "XLMRoberta", _XLM, vocabulary="unigram"),
    Case("xlm-roberta-bf16", "XLMRoberta", _XLM, vocabulary="unigram", dtype="BF16"),
    Case("xlm-roberta-ranker", "XLMRoberta", {**_XLM, "num_labels": 1}, ranks=True, vocabulary="unigram"),
)
