"""tokenizer.model of a trained SentencePiece model -> GGUF -> our tokenizer: the ids of the sentencepiece library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.convert.vocab.sentencepiece import read_sentencepiece
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer.vocab import TokenType
from tests.convert.vocab.exporting import export, exported_tokenizer
from tests.tokenizer.corpus import nasty_texts, prose, wild_texts
from tests.tokenizer.vocabs import train_spm

CORPUS = [prose(20000), *nasty_texts(1500, seed=7)]
NAMES = {"bos_token": "<s>", "eos_token": "</s>", "add_bos_token": True, "add_eos_token": False}


@pytest.mark.parametrize("options", [{}, {"add_dummy_prefix": False}, {"split_digits": False}], ids=str)
def test_ids_are_those_of_the_sentencepiece_library(options: dict[str, Any], tmp_path: Path) -> None:
    model = train_spm(CORPUS, 900, **options)
    files = {"tokenizer.model": model.serialized_model_proto(), "tokenizer_config.json": NAMES}
    ours = exported_tokenizer(tmp_path, files, model.vocab_size())
    for text in wild_texts(seed=11):
        plain = text.replace("\0", "")  # where SentencePiece ends a text
        assert ours.encode(plain, add_special=False) == model.encode(plain), repr(text)
    assert (ours.bos_id, ours.eos_id, ours.add_bos) == (1, 2, True)


@pytest.mark.parametrize(("said", "expected"), [(False, False), (True, True), (None, True)])
def test_the_config_may_leave_out_the_space_before_a_text(said: bool | None, expected: bool, tmp_path: Path) -> None:
    data = train_spm(CORPUS, 900).serialized_model_proto()
    named = NAMES if said is None else {**NAMES, "add_prefix_space": said}
    keys = export(tmp_path, {"tokenizer.model": data, "tokenizer_config.json": named}, 900)
    assert keys["add_space_prefix"] is expected


def test_what_the_proto_says_is_read() -> None:
    model = train_spm(CORPUS, 900, user_defined_symbols=["<mine>"], add_dummy_prefix=False)
    proto = read_sentencepiece(model.serialized_model_proto(), "tokenizer.model")
    assert (proto.model, proto.add_space_prefix, proto.remove_extra_whitespaces) == ("llama", False, False)
    assert [text for text, _, _ in proto.pieces] == [model.id_to_piece(i) for i in range(900)]
    assert [score for _, score, _ in proto.pieces] == [model.get_score(i) for i in range(900)]
    kinds = {text: kind for text, _, kind in proto.pieces}
    assert kinds["<unk>"] == TokenType.UNKNOWN
    assert kinds["</s>"] == TokenType.CONTROL
    assert kinds["<0x0A>"] == TokenType.BYTE
    assert kinds["<mine>"] == TokenType.USER_DEFINED
    assert kinds["e"] == TokenType.NORMAL


def test_unigram_models_keep_what_they_need(tmp_path: Path) -> None:
    model = train_spm(CORPUS, 900, model_type="unigram", normalization_rule_name="nmt_nfkc",
                      remove_extra_whitespaces=True)  # fmt: skip
    keys = export(tmp_path, {"tokenizer.model": model.serialized_model_proto()}, 900)
    assert keys["model"] == "t5"
    assert keys["remove_extra_whitespaces"] is True
    assert len(keys["precompiled_charsmap"]) > 1000
    assert keys["precompiled_charsmap"].dtype == np.uint8  # llama.cpp takes bytes only


def test_added_tokens_replace_padding(tmp_path: Path) -> None:
    model = train_spm(CORPUS, 900)
    files = {
        "tokenizer.model": model.serialized_model_proto(),
        "added_tokens.json": {"<tool>": 900},
        "tokenizer_config.json": {"added_tokens_decoder": {"901": {"content": "<|im_end|>", "special": False}}},
    }
    keys = export(tmp_path, files, 904)
    assert keys["tokens"][899:] == [model.id_to_piece(899), "<tool>", "<|im_end|>", "[PAD902]", "[PAD903]"]
    kinds = [TokenType.USER_DEFINED, TokenType.CONTROL, TokenType.UNUSED, TokenType.UNUSED]
    assert keys["token_type"][900:].tolist() == kinds
    assert keys["scores"][900:].tolist() == [-1000, -1000, -10000, -10000]


def test_broken_files_are_refused() -> None:
    data = train_spm(CORPUS, 900).serialized_model_proto()
    for size in (1, 100, len(data) // 2 + 3):
        with pytest.raises(ModelFormatError, match="not a SentencePiece model, or cut off"):
            read_sentencepiece(data[:size], "tokenizer.model")
    with pytest.raises(ModelFormatError, match="no pieces"):
        read_sentencepiece(b"", "tokenizer.model")
    words = train_spm(CORPUS, 300, model_type="word", byte_fallback=False, hard_vocab_limit=False)
    with pytest.raises(UnsupportedModelError, match=r"SentencePiece model type 3; supported: unigram"):
        read_sentencepiece(words.serialized_model_proto(), "tokenizer.model")
