"""A tokenizer.json that the tokenizers library trained -> GGUF -> our tokenizer: the same ids."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import AddedToken, models, normalizers, pre_tokenizers, trainers

from ollama_engine.errors import ModelFormatError
from ollama_engine.tokenizer import from_gguf
from ollama_engine.tokenizer.pretokenizer_table import find_spec
from ollama_engine.tokenizer.vocab import TokenType
from tests.convert.vocab.exporting import export, exported_tokenizer
from tests.convert.vocab.test_pre import as_json
from tests.tokenizer.corpus import nasty_texts, prose, wild_texts
from tests.tokenizer.vocabs import ALPHABET, train_spm

SPECIAL = ("<|begin|>", "<|end|>", "<|eot_id|>")
USER_DEFINED = ("<think>", "</think>")


@cache
def _trained() -> str:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=ALPHABET, show_progress=False, max_token_length=24)
    tokenizer.train_from_iterator([prose(20000), *nasty_texts(1500, seed=7)], trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in USER_DEFINED])
    return str(tokenizer.to_str())


def trained(pre: str) -> dict[str, Any]:
    """tokenizer.json with special tokens, user-defined ones, and a template that puts BOS first."""
    values: dict[str, Any] = json.loads(_trained())
    wanted = as_json(find_spec(pre))
    values["pre_tokenizer"] = wanted["pre_tokenizer"]
    values["model"]["ignore_merges"] = wanted["model"]["ignore_merges"]
    values["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": SPECIAL[0], "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {SPECIAL[0]: {"id": SPECIAL[0], "ids": [700], "tokens": [SPECIAL[0]]}},
    }
    return values


NAMES = {"bos_token": SPECIAL[0], "eos_token": {"content": SPECIAL[1], "lstrip": False}}


@pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "gpt-2", "deepseek-v3", "tekken", "gpt-4o", "starcoder"])
def test_ids_are_those_of_the_tokenizers_library(pre: str, tmp_path: Path) -> None:
    values = trained(pre)
    reference = tokenizers.Tokenizer.from_str(json.dumps(values))
    ours = exported_tokenizer(tmp_path, {"tokenizer.json": values, "tokenizer_config.json": NAMES}, 705)
    for text in [*wild_texts(8, (*SPECIAL, *USER_DEFINED)), "<|begin|>Hello<|end|> <think>x</think><|eot_id|>", ""]:
        assert ours.encode(text) == reference.encode(text).ids, repr(text)
    assert (ours.bos_id, ours.eos_id, ours.add_bos, ours.add_eos) == (700, 701, True, False)
    assert ours.is_control(702)
    assert not ours.is_control(703)


def test_merges_in_both_forms_are_the_same(tmp_path: Path) -> None:
    values = trained("llama-bpe")
    pairs = values["model"]["merges"]
    assert isinstance(pairs[0], list)
    as_pairs = export(tmp_path, {"tokenizer.json": values}, 705)["merges"]
    values["model"]["merges"] = [" ".join(pair) for pair in pairs]
    assert export(tmp_path, {"tokenizer.json": values}, 705)["merges"] == as_pairs == [" ".join(p) for p in pairs]


def test_rows_of_the_embedding_beyond_the_vocabulary_are_unused(tmp_path: Path) -> None:
    found = export(tmp_path, {"tokenizer.json": trained("qwen2")}, 710)
    assert found["tokens"][700:] == [*SPECIAL, *USER_DEFINED, *(f"[PAD{i}]" for i in range(705, 710))]
    kinds = [TokenType.CONTROL] * 3 + [TokenType.USER_DEFINED] * 2 + [TokenType.UNUSED] * 5
    assert found["token_type"][699:].tolist() == [TokenType.NORMAL, *kinds]


def test_tokens_beyond_the_embedding_are_said_and_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    found = export(tmp_path, {"tokenizer.json": trained("qwen2")}, 704)
    assert len(found["tokens"]) == 704
    assert "token '</think>' has id 704, but the model has 704; it is left out" in caplog.text


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"type": "BPE", "vocab": [], "merges": []}, "model.vocab is not an object of token ids"),
        ({"type": "BPE", "vocab": {"a": "0"}, "merges": []}, "model.vocab is not an object of token ids"),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": {}}, "model.merges is a dict, expected a list"),
        ({"type": "BPE", "vocab": {"a": 0}, "merges": [["a"]]}, r"a merge is \['a'\], expected two strings"),
    ],
)
def test_broken_files_are_refused(model: dict[str, Any], message: str, tmp_path: Path) -> None:
    values = {"model": model, "pre_tokenizer": {"type": "ByteLevel"}}
    with pytest.raises(ModelFormatError, match=message):
        export(tmp_path, {"tokenizer.json": values}, 8)


def test_sentencepiece_that_was_published_as_json(tmp_path: Path) -> None:
    """transformers makes merges of a SentencePiece model's scores; the ids stay those of SentencePiece."""
    model = train_spm([prose(20000), *nasty_texts(1500, seed=7)], 900)
    pieces = [model.id_to_piece(i) for i in range(model.vocab_size())]
    ids = {text: i for i, text in enumerate(pieces)}
    halves = [(text[:n], text[n:], ids[text]) for text in pieces for n in range(1, len(text))]
    merges = [(left, right, whole) for left, right, whole in halves if left in ids and right in ids]
    merges.sort(key=lambda merge: (-model.get_score(merge[2]), ids[merge[0]], ids[merge[1]]))
    values = {
        "model": {"type": "BPE", "vocab": ids, "merges": [[left, right] for left, right, _ in merges],
                  "byte_fallback": True, "unk_token": "<unk>"},
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}]},
        "added_tokens": [{"id": i, "content": pieces[i], "special": True} for i in range(3)],
    }  # fmt: skip
    files = {"tokenizer.json": values, "tokenizer_config.json": {"bos_token": "<s>", "eos_token": "</s>"}}
    ours = exported_tokenizer(tmp_path, files, len(pieces))
    for text in wild_texts(seed=9):
        plain = text.replace("▁", "_").replace("\0", "")
        assert ours.encode(plain, add_special=False) == model.encode(plain), repr(text)


def test_a_vocabulary_of_gemma_4_keeps_its_merges(tmp_path: Path) -> None:
    """A piece has no score there: only the pairs that the merges name are joined."""
    model = models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    reference = tokenizers.Tokenizer(model)
    reference.normalizer = normalizers.Replace(" ", "▁")
    specials = ["<unk>", "<|turn>", *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=700, special_tokens=specials, limit_alphabet=200, show_progress=False)
    lines = [line for text in [prose(20000), *nasty_texts(1500, seed=7)] for line in text.split("\n")]
    reference.train_from_iterator([*lines, "\n"], trainer)
    values = json.loads(reference.to_str())
    values["added_tokens"] = [token for token in values["added_tokens"] if token["content"] in specials[:2]]
    # A pair that no merge makes, though it spells a piece: scores would join it.
    values["model"]["vocab"]["QX"] = 700
    made = export(tmp_path, {"tokenizer.json": values}, 701, pre_names=("gemma4",))
    assert (made["model"], len(made["merges"])) == ("gemma4", len(values["model"]["merges"]))
    reference, ours = tokenizers.Tokenizer.from_str(json.dumps(values)), from_gguf(tmp_path / "vocab.gguf")
    assert ours.encode("QX") == reference.encode("QX").ids
    for text in [*wild_texts(8, ("<|turn>",)), prose(5000, seed=3)]:
        assert ours.encode(text) == reference.encode(text).ids, text
