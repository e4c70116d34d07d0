"""Every pre-tokenizer name against the ids that llama.cpp gives (make_goldens.py wrote them)."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.tokenizer import from_metadata
from ollama_engine.tokenizer.pretokenizer_table import find_spec, pretokenizer_names
from tests.tokenizer.test_bpe_reference import original, reference
from tests.tokenizer.vocabs import BYTE, NORMAL, bpe_metadata

GOLDENS: dict[str, Any] = json.loads((Path(__file__).parent / "goldens.json").read_text(encoding="utf-8"))
# llama.cpp aborts on a vocabulary with this name; the original drops white space, which is tested below.
NOT_COVERED = {"clip", "whitespace"}


def metadata(name: str) -> dict[str, Any]:
    raw = name in GOLDENS["raw_names"]
    vocab = GOLDENS["raw" if raw else "byte_level"]
    result = bpe_metadata(vocab["tokens"], vocab["merges"], pre=name)
    if raw:
        kinds = [BYTE if re.fullmatch("<0x..>", text) else NORMAL for text in vocab["tokens"]]
        result["tokenizer.ggml.token_type"] = kinds
    return result


def test_the_table_is_complete() -> None:
    assert set(pretokenizer_names()) == set(GOLDENS["same_as"]) | NOT_COVERED


@pytest.mark.parametrize("name", GOLDENS["same_as"])
def test_name(name: str) -> None:
    tokenizer = from_metadata(metadata(name))
    texts_ids = zip(GOLDENS["texts"], GOLDENS["ids"][GOLDENS["same_as"][name]], strict=True)
    compared = {text: ids for text, ids in texts_ids if ids is not None}
    for text, ids in compared.items():
        assert tokenizer.encode(text, add_special=False) == ids, text
        assert find_spec(name).byte_level is False or tokenizer.decode(ids) == text
        assert tokenizer.longest_token is None or len(text) <= tokenizer.longest_token * len(ids)
    left_out = [text for text in GOLDENS["texts"] if text not in compared]
    assert (len(left_out) > 0) == (name in GOLDENS["left_out"])
    assert len(compared) >= 40


def test_texts_are_left_out_where_llama_cpp_differs() -> None:
    """And only there: on each of them the model's own expressions give other ids."""
    for name in GOLDENS["left_out"]:
        tokenizer = from_metadata(metadata(name))
        vocab = GOLDENS["byte_level"]["tokens"], GOLDENS["byte_level"]["merges"]
        theirs = reference(vocab, original(name), ignore_merges=find_spec(name).ignore_merges)
        ids = GOLDENS["ids"][GOLDENS["same_as"][name]]
        for text in (text for text, found in zip(GOLDENS["texts"], ids, strict=True) if found is None):
            assert tokenizer.encode(text, add_special=False) == theirs.encode(text).ids, text


@pytest.mark.parametrize("model", ["gpt2", "whitespace"])
def test_whitespace(model: str) -> None:
    tokens = ["<unk>", "a", "b", "中", "ab", "A"]
    keys: dict[str, Any] = {"unknown_token_id": 0, "normalizer.lowercase": True}
    tokenizer = from_metadata(bpe_metadata(tokens, ["a b"], pre="whitespace", model=model, **keys))
    assert tokenizer.encode(" ab \n\u3000a中x b") == [4, 1, 3, 0, 2]
    assert tokenizer.encode("A") == ([1] if model == "whitespace" else [5])
    assert tokenizer.encode("a\udc80 \udc81b") == [1, 0, 0, 2]
    assert tokenizer.decode([4, 3]) == "ab中"


def test_gemma4_model() -> None:
    goldens = metadata("gemma4")
    tokenizer = from_metadata({**goldens, "tokenizer.ggml.model": "gemma4", "tokenizer.ggml.pre": "anything"})
    for text, ids in zip(GOLDENS["texts"], GOLDENS["ids"][GOLDENS["same_as"]["gemma4"]], strict=True):
        assert tokenizer.encode(text) == ids
        assert tokenizer.decode(ids) == text
