"""WordPiece vocabularies in GGUF's spelling."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ollama_engine.tokenizer.vocab import TokenType
from tests.convert.vocab.exporting import export

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##ing", "##", "é", "[odd"]
SPELLED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁the", "ing", "", "▁é", "▁[odd"]
NAMES = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]", "mask_token": "[MASK]"}
IDS = {"cls_token_id": 2, "seperator_token_id": 3, "padding_token_id": 0, "unknown_token_id": 1, "mask_token_id": 4}


def as_json(normalizer: Any) -> dict[str, Any]:
    return {
        "model": {"type": "WordPiece", "vocab": {text: i for i, text in enumerate(PIECES)},
                  "continuing_subword_prefix": "##", "unk_token": "[UNK]"},
        "added_tokens": [{"id": i, "content": PIECES[i], "special": True} for i in range(5)],
        "normalizer": normalizer,
        "post_processor": {"type": "BertProcessing", "cls": ["[CLS]", 2], "sep": ["[SEP]", 3]},
    }  # fmt: skip


NORMALIZERS: dict[str, tuple[Any, dict[str, bool]]] = {
    "none": (None, {}),
    "lowercase": ({"type": "Lowercase"}, {"lowercase": True}),
    "bert": ({"type": "BertNormalizer", "lowercase": False, "strip_accents": None}, {"lowercase": False}),
    "bert-accents": ({"type": "BertNormalizer", "lowercase": True, "strip_accents": False},
                     {"lowercase": True, "strip_accents": False}),
    "sequence": ({"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]},
                 {"strip_accents": True}),
}  # fmt: skip


@pytest.mark.parametrize("name", NORMALIZERS)
def test_of_tokenizer_json(name: str, tmp_path: Path) -> None:
    normalizer, flags = NORMALIZERS[name]
    keys = export(tmp_path, {"tokenizer.json": as_json(normalizer), "tokenizer_config.json": NAMES}, 12)
    assert keys["model"] == "bert"
    assert keys["tokens"] == [*SPELLED, "[PAD10]", "[PAD11]"]
    kinds = [TokenType.CONTROL] * 5 + [TokenType.NORMAL] * 5 + [TokenType.UNUSED] * 2
    assert keys["token_type"].tolist() == kinds
    assert {key: keys[key] for key in IDS} == IDS
    assert (keys["add_bos_token"], keys["add_eos_token"], keys["add_sep_token"]) == (True, True, True)
    names = ("lowercase", "strip_accents")
    assert {k: keys[f"normalizer.{k}"] for k in names if f"normalizer.{k}" in keys} == flags


def test_of_vocab_txt(tmp_path: Path) -> None:
    files = {"vocab.txt": "\n".join(PIECES) + "\n", "tokenizer_config.json": {**NAMES, "do_lower_case": False}}
    found = export(tmp_path, files, 10)
    assert found["tokens"] == SPELLED
    assert found["token_type"].tolist() == [TokenType.CONTROL] * 5 + [TokenType.NORMAL] * 5
    assert found["normalizer.lowercase"] is False
