"""Vocabularies that several tests share; training takes a second or two each."""

from __future__ import annotations

import pytest
import sentencepiece

from tests.tokenizer.corpus import nasty_texts, prose
from tests.tokenizer.vocabs import train_bpe, train_spm


@pytest.fixture(scope="session")
def bpe_vocab() -> tuple[list[str], list[str]]:
    """(tokens, merges) of 4,000 byte-level tokens that reach over all borders between pieces."""
    return train_bpe([*nasty_texts(20_000, seed=5), *(prose(1_000, seed) for seed in range(100))], 4_000)


@pytest.fixture(scope="session")
def spm_model() -> sentencepiece.SentencePieceProcessor:
    return train_spm([*nasty_texts(4_000, seed=6), prose(4_000)], 3_000)
