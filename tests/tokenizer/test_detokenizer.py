"""Streams of ids: the pieces join to the whole, and no piece cuts a character."""

from __future__ import annotations

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.tokenizer import Tokenizer, from_metadata
from tests.support.suite import scaled
from tests.tokenizer.vocabs import ALPHABET, CONTROL, bpe_metadata, spm_metadata


@pytest.fixture(scope="module")
def spm(spm_model: sentencepiece.SentencePieceProcessor) -> Tokenizer:
    return from_metadata(spm_metadata(spm_model))


def stream(tokenizer: Tokenizer, ids: list[int], *, skip_special: bool = True, continues: bool = False) -> list[str]:
    detokenizer = tokenizer.detokenizer(skip_special=skip_special, continues=continues)
    return [*(detokenizer.push(token_id) for token_id in ids), detokenizer.flush()]


@given(data=st.data(), skip_special=st.booleans(), continues=st.booleans())
@settings(max_examples=scaled(400, quick=50))
def test_pieces_join_to_the_whole(spm: Tokenizer, data: st.DataObject, skip_special: bool, continues: bool) -> None:
    bytes_only = from_metadata(bpe_metadata(ALPHABET, special=[("<s>", CONTROL)]))
    for tokenizer in (bytes_only, spm):
        ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=30))
        pieces = stream(tokenizer, ids, skip_special=skip_special, continues=continues)
        assert "".join(pieces) == tokenizer.decode(ids, skip_special=skip_special, continues=continues)


@given(text=st.text(max_size=30))
@settings(max_examples=scaled(300, quick=50))
def test_text_arrives_in_whole_characters(spm: Tokenizer, text: str) -> None:
    bytes_only = from_metadata(bpe_metadata(ALPHABET))
    for tokenizer in (bytes_only, spm):
        pieces = stream(tokenizer, tokenizer.encode(text, parse_special=False))
        assert "".join(pieces) == (text if tokenizer is bytes_only else text.replace("▁", " "))
        assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


def test_an_unfinished_character_waits() -> None:
    tokenizer = from_metadata(bpe_metadata(ALPHABET))
    ids = tokenizer.encode("é😀")
    assert stream(tokenizer, ids) == ["", "é", "", "", "", "😀", ""]
    assert stream(tokenizer, ids[:4]) == ["", "é", "", "", "\ufffd"]
    assert stream(tokenizer, [ids[0], *tokenizer.encode("a")]) == ["", "\ufffda", ""]


def test_flush_starts_anew() -> None:
    tokenizer = from_metadata(bpe_metadata(ALPHABET))
    first, second = tokenizer.encode("é")
    detokenizer = tokenizer.detokenizer()
    assert [detokenizer.push(first), detokenizer.flush(), detokenizer.flush()] == ["", "\ufffd", ""]
    assert [detokenizer.push(first), detokenizer.push(second)] == ["", "é"]


@pytest.mark.parametrize(
    ("continues", "expected"),
    [(False, ["", "Hello", " Hello"]), (True, ["", " Hello", " Hello"])],
)
def test_leading_space(spm_model: sentencepiece.SentencePieceProcessor, continues: bool, expected: list[str]) -> None:
    metadata = spm_metadata(spm_model)
    metadata["tokenizer.ggml.tokens"][300] = "▁Hello"
    tokenizer = from_metadata(metadata)
    ids = [1, 300, 300]
    assert stream(tokenizer, ids, continues=continues) == [*expected, ""]
    assert tokenizer.decode(ids, continues=continues) == "".join(expected)


def test_only_one_leading_space_goes(spm: Tokenizer) -> None:
    for text in ("  a", " ", "", "a", " a"):
        assert spm.decode(spm.encode(text)) == text
        assert "".join(stream(spm, spm.encode(text))) == text


def test_without_space_prefix_no_space_goes(spm_model: sentencepiece.SentencePieceProcessor) -> None:
    tokenizer = from_metadata(spm_metadata(spm_model, add_space_prefix=False))
    assert tokenizer.decode(tokenizer.encode(" a")) == " a"
    assert tokenizer.encode("a", add_special=False) != tokenizer.encode(" a", add_special=False)
