"""Unigram of a tokenizer.json -> GGUF -> our tokenizer: the ids of the `tokenizers` library, for vocabularies trained
here.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Regex, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Theirs
from tokenizers.models import Unigram

from ollama_engine.convert.vocab.sentencepiece import read_sentencepiece
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer.charsmap import Charsmap
from ollama_engine.tokenizer.vocab import TokenType
from tests.convert.vocab.exporting import export, exported_tokenizer
from tests.support.suite import scaled
from tests.tokenizer.corpus import nasty_texts, prose
from tests.tokenizer.vocabs import train_spm

CORPUS = [prose(20_000), *nasty_texts(1_500, seed=7)]
SPECIALS = ["<pad>", "</s>", "<unk>"]
NAMES = {"eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}


def as_float32(tokenizer: Theirs) -> Theirs:
    """The same with scores as GGUF holds them; those of models that came from SentencePiece are such already."""
    text = json.loads(tokenizer.to_str())
    for entry in text["model"]["vocab"]:
        entry[1] = float(np.float32(entry[1]))
    return Theirs.from_str(json.dumps(text))


@pytest.fixture(scope="module")
def charsmap() -> bytes:
    model = train_spm(CORPUS, 900, model_type="unigram", normalization_rule_name="nmt_nfkc", hard_vocab_limit=False)
    return read_sentencepiece(model.serialized_model_proto(), "trained here").charsmap


def trained(*, byte_fallback: bool = False, **steps: Any) -> Theirs:
    """By the library itself; `steps` are its normalizer and pre_tokenizer."""
    theirs = Theirs(Unigram())
    for name, step in steps.items():
        setattr(theirs, name, step)
    trainer = trainers.UnigramTrainer(vocab_size=900, special_tokens=SPECIALS, unk_token="<unk>", show_progress=False)
    theirs.train_from_iterator(CORPUS, trainer)
    if byte_fallback:
        text = json.loads(theirs.to_str())
        text["model"]["vocab"] += [[f"<0x{byte:02X}>", -30.0] for byte in range(256)]
        text["model"]["byte_fallback"] = True
        theirs = Theirs.from_str(json.dumps(text))
    return as_float32(theirs)


def published(charsmap: bytes) -> Theirs:
    """As T5's and XLM-R's files are: replacements, words, a space before each."""
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    return trained(normalizer=normalizers.Precompiled(charsmap), pre_tokenizer=words)


def newer(charsmap: bytes) -> Theirs:
    """As newer versions of transformers write them."""
    steps = [normalizers.Precompiled(charsmap), normalizers.Strip(left=False), normalizers.Replace(Regex(" {2,}"), "▁")]
    return trained(normalizer=normalizers.Sequence(steps), pre_tokenizer=pre_tokenizers.Metaspace())


def files(theirs: Theirs) -> dict[str, Any]:
    return {"tokenizer.json": theirs.to_str(), "tokenizer_config.json": NAMES}


@pytest.mark.parametrize("make", [published, newer])
def test_ids_are_those_of_the_tokenizers_library(make: Any, charsmap: bytes, tmp_path: Path) -> None:
    """But for two things: the library looks for replacements of whole graphemes and drops marks behind some (compare
    SentencePiece's test), and U+0085, which the table leaves alone, is white space to it.
    """
    theirs = make(charsmap)
    ours = exported_tokenizer(tmp_path, files(theirs), theirs.get_vocab_size())
    table, precompiled, compared = Charsmap(charsmap), normalizers.Precompiled(charsmap), 0
    for text in nasty_texts(scaled(14_000, quick=1_400), seed=11):
        if table.apply(text) == precompiled.normalize_str(text) and "\x85" not in text:
            compared += 1
            assert ours.encode(text, add_special=False) == theirs.encode(text).ids, repr(text)
    assert compared >= scaled(10_000, quick=1_000)


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_without_replacements(byte_fallback: bool, tmp_path: Path) -> None:
    """Nothing is squeezed then. The library puts no space before a text that has one."""
    theirs = trained(pre_tokenizer=pre_tokenizers.Metaspace(), byte_fallback=byte_fallback)
    ours = exported_tokenizer(tmp_path, files(theirs), theirs.get_vocab_size())
    for text in nasty_texts(scaled(10_000, quick=1_000), seed=12):
        plain = text.lstrip(" ▁")
        assert ours.encode(plain, add_special=False) == theirs.encode(plain).ids, repr(plain)


def test_the_rows(tmp_path: Path) -> None:
    theirs = trained(pre_tokenizer=pre_tokenizers.Metaspace(), byte_fallback=True)
    n_vocab = theirs.get_vocab_size()
    keys = export(tmp_path, files(theirs), n_vocab + 2)
    assert (keys["model"], keys["unknown_token_id"], keys["eos_token_id"]) == ("t5", 2, 1)
    assert (keys["add_space_prefix"], keys["remove_extra_whitespaces"]) == (True, False)
    entries = json.loads(theirs.to_str())["model"]["vocab"]
    assert keys["tokens"][:n_vocab] == [text for text, _ in entries]
    np.testing.assert_array_equal(keys["scores"][3:n_vocab], np.array([s for _, s in entries[3:]], np.float32))
    kinds = keys["token_type"].tolist()
    assert kinds[:4] == [TokenType.CONTROL, TokenType.CONTROL, TokenType.UNKNOWN, TokenType.NORMAL]
    assert kinds[n_vocab - 256 :] == [TokenType.BYTE] * 256 + [TokenType.UNUSED] * 2


def test_it_counts_before_a_tokenizer_model(tmp_path: Path) -> None:
    """Whose ids differ in XLM-R."""
    theirs = trained(pre_tokenizer=pre_tokenizers.Metaspace())
    other = train_spm(CORPUS, 900).serialized_model_proto()
    found = export(tmp_path, {**files(theirs), "tokenizer.model": other}, theirs.get_vocab_size())
    assert found["tokens"][:3] == SPECIALS


# -- refused -----------------------------------------------------------------------------------------------------------

METASPACE = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}
MODEL = {"type": "Unigram", "unk_id": 0, "vocab": [["<unk>", 0.0], ["▁", -1.0]]}
SPLIT = {"type": "WhitespaceSplit"}
STRIP = {"type": "Strip", "strip_left": False, "strip_right": True}
SQUEEZE = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "normalizer": ({"normalizer": {"type": "Lowercase"}}, UnsupportedModelError, "Lowercase.*nothing like it in GGUF"),
    "words": ({"pre_tokenizer": SPLIT}, UnsupportedModelError, "WhitespaceSplit.*nothing like it in GGUF"),
    "first": (
        {"pre_tokenizer": METASPACE | {"prepend_scheme": "first"}},
        UnsupportedModelError,
        "first.*nothing like it in GGUF",
    ),
    "strip": ({"normalizer": STRIP}, UnsupportedModelError, "white space at the end of a text goes"),
    "strip, no table": (
        {"normalizer": {"type": "Sequence", "normalizers": [STRIP, SQUEEZE]}},
        UnsupportedModelError,
        "white space at the end of a text goes",
    ),
    "strip left": (
        {"normalizer": {"type": "Sequence", "normalizers": [STRIP | {"strip_left": True}, SQUEEZE]}},
        UnsupportedModelError,
        "Strip.*nothing like it in GGUF",
    ),
    "spaces": ({"pre_tokenizer": None}, UnsupportedModelError, "no step writes spaces as U"),
    "base64": ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": "%"}}, ModelFormatError, "not base64"),
    "vocab": ({"model": {**MODEL, "vocab": {"a": 1}}}, ModelFormatError, "not a list of pieces with scores"),
    "piece": ({"model": {**MODEL, "vocab": [["a", "b"]]}}, ModelFormatError, "a piece is .* expected a text and a sco"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_gguf_cannot_say(name: str, tmp_path: Path) -> None:
    changes, kind, told = REFUSED[name]
    with pytest.raises(kind, match=told):
        export(tmp_path, {"tokenizer.json": {"model": MODEL, "pre_tokenizer": METASPACE, **changes}}, 4)


def test_steps_that_are_known(charsmap: bytes, tmp_path: Path) -> None:
    """Llama's way to write spaces, and a prefix that is asked for in the older form or not at all."""
    marks = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    table = {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(charsmap).decode()}
    for number, (steps, prefix) in enumerate([
        ({"normalizer": {"type": "Sequence", "normalizers": [table, *marks]}}, True),
        ({"normalizer": table, "pre_tokenizer": METASPACE | {"prepend_scheme": "never"}}, False),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": "▁", "add_prefix_space": False}}, False),
    ]):  # fmt: skip
        (tmp_path / str(number)).mkdir()
        found = export(tmp_path / str(number), {"tokenizer.json": {"model": MODEL, **steps}}, 4)
        assert found["add_space_prefix"] is prefix
        assert ("precompiled_charsmap" in found) == ("normalizer" in steps)
