"""WordPiece from GGUF metadata: defaults, ids around a text, bytes, and the way back."""

from __future__ import annotations

from typing import Any

import pytest

from ollama_engine.errors import TokenizerError
from ollama_engine.tokenizer import Tokenizer, from_metadata
from tests.tokenizer.vocabs import CONTROL, NORMAL

PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "▁the", "▁small", "▁th", "ing", "s", "▁,", "▁é", "▁中", "e"]


def tokenizer(pieces: list[str] = PIECES, **keys: Any) -> Tokenizer:
    metadata = {"cls_token_id": 2, "seperator_token_id": 3, "unknown_token_id": 1, **keys}
    return from_metadata({
        "general.architecture": "bert",
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [CONTROL if p.startswith("[") else NORMAL for p in pieces],
        **{f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None},
    })  # fmt: skip


def texts(made: Tokenizer, text: str | bytes, **options: bool) -> list[str]:
    return [made.token_text(id_) for id_ in made.encode(text, **options)]


def test_marks_around_a_text() -> None:
    made = tokenizer()
    assert texts(made, "the things") == ["[CLS]", "▁the", "▁th", "ing", "s", "[SEP]"]
    assert texts(made, "the", add_special=False) == ["▁the"]
    assert texts(made, "") == ["[CLS]", "[SEP]"]
    # llama.cpp puts them there whatever these say.
    assert texts(tokenizer(add_bos_token=False, add_eos_token=False), "the") == ["[CLS]", "▁the", "[SEP]"]


def test_other_names_of_the_marks() -> None:
    made = tokenizer(cls_token_id=None, bos_token_id=0)
    assert texts(made, "the") == ["[PAD]", "▁the", "[SEP]"]


def test_ids_that_a_file_leaves_out() -> None:
    """Those of the vocabulary that BERT was published with."""
    pieces = [f"[unused{i}]" for i in range(100)] + ["[UNK]", "[CLS]", "[SEP]", "[MASK]", "▁the"]
    made = tokenizer(pieces, cls_token_id=None, seperator_token_id=None, unknown_token_id=None)
    assert made.encode("the nothing") == [101, 104, 100, 102]


def test_special_tokens_in_a_text() -> None:
    assert texts(tokenizer(), "the[SEP]the") == ["[CLS]", "▁the", "[SEP]", "▁the", "[SEP]"]
    ids = tokenizer().encode("[SEP]", add_special=False, parse_special=False)
    assert 3 not in ids


def test_letters_are_made_small_and_lose_accents() -> None:
    assert texts(tokenizer(), "THE thé", add_special=False) == ["▁the", "▁the"]
    kept = tokenizer(**{"normalizer.strip_accents": False})
    assert texts(kept, "THE É thé", add_special=False) == ["▁the", "▁é", "[UNK]"]
    cased = tokenizer(**{"normalizer.lowercase": False})
    assert texts(cased, "the THE", add_special=False) == ["▁the", "[UNK]"]


def test_bytes_that_are_no_text_are_dropped() -> None:
    assert texts(tokenizer(), b"th\xffe \xc3", add_special=False) == ["▁the"]
    assert texts(tokenizer(), "t\udcffhe", add_special=False) == ["▁the"]


def test_ideographs_stand_alone() -> None:
    assert texts(tokenizer(), "the中the,中", add_special=False) == ["▁the", "▁中", "▁the", "▁,", "▁中"]


def test_no_token_for_unknown_words() -> None:
    made = tokenizer(["▁a"], cls_token_id=None, seperator_token_id=None, unknown_token_id=None)
    assert made.encode("a a") == [0, 0]
    with pytest.raises(TokenizerError, match="neither pieces for 'b' nor a token for unknown words"):
        made.encode("b")


def test_back_to_text() -> None:
    made = tokenizer()
    assert made.decode(made.encode("The  things,  small")) == "the things , small"
    assert made.decode([4, 7], continues=True) == " theing"
