"""Names in the metadata, forms of values, and errors that say what is wrong."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sentencepiece

from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer import from_metadata
from ollama_engine.tokenizer.pretokenizer_table import find_spec, pretokenizer_names
from tests.tokenizer.vocabs import ALPHABET, CONTROL, bpe_metadata, spm_metadata


@pytest.mark.parametrize(
    ("flag", "names"),
    [
        ("add_bos", "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken chameleon"),
        ("force_bos", "gemma4 granite-embed-multi-311m"),
        (
            "ignore_merges",
            "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2 jina-v5-nano tekken glm4 glm5 youtu "
            "minicpm5 granite-embed-multi-97m",
        ),
    ],
)
def test_flags(flag: str, names: str) -> None:
    assert {name for name in pretokenizer_names() if getattr(find_spec(name), flag)} == set(names.split())


@pytest.mark.parametrize(
    ("pre", "architecture", "expected"),
    [
        ("default", "llama", "default"),
        ("", "llama", "default"),
        ("", "mistral3", "tekken"),
        ("default", "gptoss", "gpt-4o"),
        ("qwen2", "mistral3", "qwen2"),
    ],
)
def test_default_goes_by_architecture(pre: str, architecture: str, expected: str) -> None:
    assert find_spec(pre, architecture).name == expected


@pytest.mark.parametrize("model", ["rwkv", "plamo2", "hybriddna", "none", "new"])
def test_unknown_tokenizer(model: str) -> None:
    with pytest.raises(UnsupportedModelError, match=rf"'{model}'.* supported tokenizers: bert, gemma4, gpt2, llama"):
        from_metadata(bpe_metadata(ALPHABET, model=model))


def test_no_tokenizer() -> None:
    with pytest.raises(UnsupportedModelError, match="the file has no tokenizer"):
        from_metadata({"general.architecture": "llama"})


def test_unknown_pretokenizer() -> None:
    with pytest.raises(UnsupportedModelError, match=r"'llama-9'.* supported: a\.x-4\.0, .* youtu"):
        from_metadata(bpe_metadata(ALPHABET, pre="llama-9"))


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"tokens": []}, "tokens is missing or empty"),
    ({"tokens": 3}, "expected an array of strings, got int"),
    ({"tokens": ["a", 3]}, "expected an array of strings"),
    ({"merges": ["a b", "ab"]}, r"merges\[1\] is 'ab'; expected two parts"),
    ({"merges": [" "]}, "expected two parts"),
    ({"merges": None}, "merges is missing"),
    ({"merges": np.zeros(3)}, "merges: expected an array of strings"),
    ({"token_type": [1, 1]}, "token_type has 2 entries for 256 tokens"),
    ({"token_type": "x"}, "token_type: expected an array of numbers"),
    ({"scores": [0.0]}, "scores has 1 entries for 256 tokens"),
    ({"pre": 7}, "pre: expected a string, got int"),
    ({"add_bos_token": "yes"}, "add_bos_token: expected a bool"),
    ({"add_bos_token": True}, "add_bos_token is true, but tokenizer.ggml.bos_token_id names no token"),
    ({"add_eos_token": True, "eos_token_id": 300}, "add_eos_token is true"),
    ({"bos_token_id": "1"}, "bos_token_id: expected a token id"),
    ({"eos_token_ids": [[1]]}, "eos_token_ids: expected a token id"),
]


@pytest.mark.parametrize(("changes", "message"), BROKEN)
def test_broken_metadata(changes: dict[str, Any], message: str) -> None:
    metadata = bpe_metadata(ALPHABET)
    metadata.update({f"tokenizer.ggml.{key}": value for key, value in changes.items()})
    if changes.get("merges", 0) is None:
        del metadata["tokenizer.ggml.merges"]
    with pytest.raises(ModelFormatError, match=message):
        from_metadata(metadata)


def test_broken_scores(spm_model: sentencepiece.SentencePieceProcessor) -> None:
    metadata = spm_metadata(spm_model)
    scores = metadata.pop("tokenizer.ggml.scores")
    with pytest.raises(ModelFormatError, match="scores is missing"):
        from_metadata(metadata)
    with pytest.raises(ModelFormatError, match="NaN"):
        from_metadata({**metadata, "tokenizer.ggml.scores": scores * np.nan})
    whole = from_metadata({**metadata, "tokenizer.ggml.scores": list(scores)})
    assert whole.encode("Hello 1")


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint32, np.int64, np.uint64])
def test_ids_and_types_of_any_width(kind: type[np.generic]) -> None:
    metadata = bpe_metadata(ALPHABET, special=[("<s>", CONTROL), ("</s>", CONTROL)])
    metadata["tokenizer.ggml.token_type"] = np.array(metadata["tokenizer.ggml.token_type"], kind)
    metadata["tokenizer.ggml.eos_token_ids"] = np.array([1, 2], kind)
    metadata["tokenizer.ggml.bos_token_id"] = np.array([3], kind)[0]
    metadata["tokenizer.ggml.add_bos_token"] = np.bool_(True)
    tokenizer = from_metadata(metadata)
    assert tokenizer.eog_ids == {1, 2, 257}
    assert tokenizer.bos_id == 3
    assert tokenizer.encode("<s>") == [3, 256]


def test_kimi_needs_no_merges() -> None:
    metadata = bpe_metadata(ALPHABET, pre="kimi-k2")
    del metadata["tokenizer.ggml.merges"]
    assert from_metadata(metadata).decode(from_metadata(metadata).encode("a b")) == "a b"


def test_empty_and_equal_tokens() -> None:
    tokenizer = from_metadata(bpe_metadata(["", "a", "b", "a"]))
    assert tokenizer.token_text(0) == "[EMPTY_0]"
    assert tokenizer.encode("ab") == [3, 2]


def test_merges_without_a_token_fall_back_to_bytes() -> None:
    tokenizer = from_metadata(bpe_metadata(["a", "b", "c", "abc"], ["a b", "ab c"]))
    assert tokenizer.encode("abcab") == [3, 0, 1]
