"""SentencePiece vocabularies against the `sentencepiece` library, on models trained here."""

from __future__ import annotations

from typing import Any

import pytest
import sentencepiece

from ollama_engine.tokenizer import from_metadata
from tests.tokenizer.corpus import nasty_texts, prose, wild_texts
from tests.tokenizer.vocabs import UNUSED, spm_metadata, train_spm, with_unused

Model = sentencepiece.SentencePieceProcessor


def texts(seed: int) -> list[str]:
    # SentencePiece ends a text at U+0000, and a literal U+2581 is a space to both.
    return [text.replace("\x00", "") for text in wild_texts(seed)]


def check(model: Model, samples: list[str], **keys: Any) -> None:
    ours = from_metadata(spm_metadata(model, **keys))
    for text in samples:
        ids = ours.encode(text, add_special=False, parse_special=False)
        assert ids == model.encode(text), text


def test_byte_fallback(spm_model: Model) -> None:
    check(spm_model, texts(seed=1))


def test_prose(spm_model: Model) -> None:
    check(spm_model, [prose(20_000, seed=3)])


def test_round_trip(spm_model: Model) -> None:
    ours = from_metadata(spm_metadata(spm_model))
    for text in texts(seed=2)[::3]:
        ids = ours.encode(text)
        assert ours.decode(ids) == text
        assert ours.decode(ids) == spm_model.decode(ids)


@pytest.mark.parametrize(
    ("options", "keys"),
    [
        ({"add_dummy_prefix": False}, {"add_space_prefix": False}),
        ({"byte_fallback": False}, {}),
        ({"split_by_whitespace": False, "max_sentencepiece_length": 24}, {}),
        ({"byte_fallback": False, "character_coverage": 0.98, "add_dummy_prefix": False}, {"add_space_prefix": False}),
    ],
)
def test_options(options: dict[str, Any], keys: dict[str, Any]) -> None:
    model = train_spm([*nasty_texts(2_000, seed=8), prose(2_000)], 1_200, **options)
    check(model, texts(seed=4), **keys)


def test_user_defined_pieces() -> None:
    """They are found before anything else, the longest first. (Without a prefix: the converters' tokenizers differ from
    SentencePiece in putting the prefix after every special token.)"""
    symbols = ["<sep>", "<sep><sep>", "▁▁▁", "xyz"]
    model = train_spm(
        [*nasty_texts(2_000, seed=8), prose(2_000)], 1_200, user_defined_symbols=symbols, add_dummy_prefix=False
    )
    samples = [s.join(("a", " <sep><sep><sep>", "    b", "xyxyz")) for s in texts(seed=5)]
    check(model, samples, user_defined=symbols, add_space_prefix=False)
    ours = from_metadata(spm_metadata(model, user_defined=symbols, add_space_prefix=False))
    assert all(ours.decode(ours.encode(text)) == text for text in samples)


def test_unused_pieces_are_taken_apart(spm_model: Model) -> None:
    chosen = [i for i in range(spm_model.vocab_size()) if i % 3 == 0 and len(spm_model.id_to_piece(i)) > 1 and i > 300]
    model = Model(model_proto=with_unused(spm_model.serialized_model_proto(), set(chosen).__contains__))
    metadata = spm_metadata(model)
    assert UNUSED in metadata["tokenizer.ggml.token_type"]
    check(model, [*texts(seed=9), prose(2_000)])


def test_space_prefix_follows_special_tokens(spm_model: Model) -> None:
    ours = from_metadata(spm_metadata(spm_model))
    hello = ours.encode("Hello", add_special=False)
    assert ours.encode("<s>Hello") == [1, 1, *hello]
    assert ours.encode("Hello</s>Hello") == [1, *hello, 2, *hello]
    assert ours.encode("") == [1]
    assert ours.encode("", add_special=False) == []


def test_control_pieces_are_no_text(spm_model: Model) -> None:
    ours = from_metadata(spm_metadata(spm_model))
    for text in ("<s>", "</s>", "<unk>", "<0x41>"):
        ids = ours.encode(text, add_special=False, parse_special=False)
        assert not {0, 1, 2}.intersection(ids)
        assert ours.decode(ids) == text
