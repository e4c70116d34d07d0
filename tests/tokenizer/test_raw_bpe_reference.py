"""BPE over plain UTF-8 (Gemma 4) against the `tokenizers` library, on a vocabulary trained here."""

from __future__ import annotations

import json
import re

import pytest
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models, normalizers, trainers

from ollama_engine.tokenizer import Tokenizer, from_metadata
from tests.tokenizer.corpus import nasty_texts, prose, wild_texts
from tests.tokenizer.vocabs import BYTE, NORMAL, UNKNOWN, bpe_metadata

BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


@pytest.fixture(scope="module")
def theirs() -> HFTokenizer:
    tokenizer = HFTokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    trainer = trainers.BpeTrainer(
        vocab_size=2500, special_tokens=["<unk>", *BYTES], limit_alphabet=300, show_progress=False, max_token_length=16
    )
    # Lines apart: like Gemma's, no merge reaches over a newline.
    lines = [line for text in [*nasty_texts(8_000, seed=6), prose(50_000)] for line in text.split("\n")]
    tokenizer.train_from_iterator([*lines, "\n"], trainer)
    return tokenizer


@pytest.fixture(scope="module")
def ours(theirs: HFTokenizer) -> Tokenizer:
    model = json.loads(theirs.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    metadata = bpe_metadata(tokens, merges, model="gemma4", unknown_token_id=0)
    kinds = [BYTE if re.fullmatch(r"<0x\w\w>", token) else NORMAL for token in tokens]
    metadata["tokenizer.ggml.token_type"] = [UNKNOWN, *kinds[1:]]
    return from_metadata(metadata)


def test_same_ids(ours: Tokenizer, theirs: HFTokenizer) -> None:
    special = re.compile(r"<unk>|<0x\w\w>")
    for text in wild_texts(seed=1):
        assert not special.search(text)
        ids = ours.encode(text)
        assert ids == theirs.encode(text).ids, text
        assert ours.decode(ids) == text


def test_prose(ours: Tokenizer, theirs: HFTokenizer) -> None:
    text = prose(50_000, seed=4)
    assert ours.encode(text) == theirs.encode(text).ids


def test_invalid_bytes(ours: Tokenizer) -> None:
    data = b"a\xff\xc3 \xe4\xb8"
    assert ours.decode_bytes(ours.encode(data)) == data
    assert ours.token_text(ours.encode(data)[1]) == "<0xFF>"
