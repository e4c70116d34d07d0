"""The Tokenizer object: bytes that are not UTF-8, ids out of range, sharing, files, long inputs."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from ollama_engine.errors import TokenizerError
from ollama_engine.tokenizer import Tokenizer, from_gguf, from_metadata
from ollama_engine.tokenizer.pretokenizer_table import find_spec, pretokenizer_names
from tests.support.suite import scaled, slow_except
from tests.tokenizer.corpus import nasty_texts
from tests.tokenizer.vocabs import ALPHABET, BYTE, CONTROL, UNUSED, bpe_metadata, spm_metadata, write_gguf

BYTE_LEVEL = [name for name in pretokenizer_names() if (spec := find_spec(name)).byte_level and not spec.end_of_word]
"""Without CLIP's, which drops spaces and makes letters small: tests/convert/vocab/test_clip.py."""
DISTINCT = sorted({find_spec(name).stages: name for name in BYTE_LEVEL}.values())


@pytest.fixture(scope="module")
def bpe(bpe_vocab: tuple[list[str], list[str]]) -> Tokenizer:
    return from_metadata(bpe_metadata(*bpe_vocab, special=[("<s>", CONTROL)], pre="llama-bpe", bos_token_id=4000))


@pytest.fixture(scope="module")
def spm(spm_model: sentencepiece.SentencePieceProcessor) -> Tokenizer:
    return from_metadata(spm_metadata(spm_model))


# -- bytes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BYTE_LEVEL)
def test_any_bytes_survive_byte_level(bpe_vocab: tuple[list[str], list[str]], name: str) -> None:
    tokenizer = from_metadata(bpe_metadata(*bpe_vocab, pre=name))
    samples = [bytes(range(256)), b"\xff", b"caf\xc3", b"\xe4\xb8 x\xe4\xb8\xad", b"\xed\xa0\x80", b"1\xfe2 \x80\n"]
    for data in [*samples, *(text.encode()[1:-1] for text in nasty_texts(100, seed=11))]:
        ids = tokenizer.encode(data, add_special=False)
        assert tokenizer.decode_bytes(ids) == data
        assert tokenizer.encode(data.decode("utf-8", "surrogateescape"), add_special=False) == ids


@given(data=st.binary(max_size=60))
@settings(max_examples=scaled(300, quick=50))
def test_any_bytes_survive(bpe: Tokenizer, spm: Tokenizer, data: bytes) -> None:
    assert bpe.decode_bytes(bpe.encode(data, parse_special=False)) == data
    # To SentencePiece, U+2581 is a space.
    assert spm.decode_bytes(spm.encode(data, parse_special=False)) == data.replace("▁".encode(), b" ")


def test_lone_surrogates_that_are_no_bytes(bpe: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match=r"character 2 .* U\+D83D"):
        bpe.encode("ab\ud83d")


def test_wrong_input(bpe: Tokenizer) -> None:
    with pytest.raises(TokenizerError, match="expected str or bytes, got int"):
        bpe.encode(3)  # type: ignore[arg-type]


def test_bytes_without_a_token_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    tokenizer = from_metadata(bpe_metadata(["a", "b"]))
    with caplog.at_level(logging.WARNING):
        assert tokenizer.encode("acb\x00") == [0, 1]
    assert "2 bytes" in caplog.text
    assert "0x00" in caplog.text


# -- ids ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token_id", [-1, 4001, 2**40])
def test_ids_out_of_range(bpe: Tokenizer, token_id: int) -> None:
    assert bpe.n_vocab == 4001
    for call in (
        lambda: bpe.decode([0, token_id]),
        lambda: bpe.token_bytes(token_id),
        lambda: bpe.token_text(token_id),
        lambda: bpe.is_control(token_id),
        lambda: bpe.detokenizer().push(token_id),
    ):
        with pytest.raises(TokenizerError, match=r"0 \.\.\. 4000"):
            call()


@pytest.mark.parametrize("ids", [[1, 1.0], "12", [None], 1])
def test_ids_that_are_no_whole_numbers(bpe: Tokenizer, ids: Any) -> None:
    bpe.decode([1])  # known from now on, and 1.0 == 1
    with pytest.raises(TokenizerError, match="whole numbers"):
        bpe.decode(ids)


def test_control_tokens_are_no_output(bpe: Tokenizer) -> None:
    ids = bpe.encode("<s>a<s>", add_special=False)
    assert ids[0] == ids[-1] == bpe.bos_id == 4000
    assert bpe.is_control(4000)
    assert bpe.decode(ids) == "a"
    assert bpe.decode(ids, skip_special=False) == "<s>a<s>"
    assert bpe.token_bytes(4000) == b""
    assert bpe.token_bytes(4000, skip_special=False) == b"<s>"
    assert bpe.token_text(4000) == "<s>"


def test_unused_and_odd_tokens_add_nothing() -> None:
    special = [("[PAD1]", UNUSED), ("<0x41>", BYTE), ("<0xZZ>", BYTE), ("odd", 99)]
    tokenizer = from_metadata(bpe_metadata(ALPHABET, special=special))
    assert [tokenizer.token_bytes(i) for i in range(256, 260)] == [b"", b"A", b"", b""]


def test_added_tokens_need_no_gpt2_spelling() -> None:
    tokenizer = from_metadata(bpe_metadata([*ALPHABET, "▁x", "中"]))
    assert tokenizer.decode([256, 257]) == "▁x中"


# -- one object, many users --------------------------------------------------------------------------------------------


def test_threads_share_a_tokenizer(bpe: Tokenizer, spm: Tokenizer) -> None:
    texts = nasty_texts(300, seed=12)
    for tokenizer in (bpe, spm):
        expected = [tokenizer.encode(text) for text in texts]
        with ThreadPoolExecutor(8) as pool:
            for _ in range(3):
                assert list(pool.map(tokenizer.encode, texts)) == expected
                assert list(pool.map(tokenizer.decode, expected)) == [tokenizer.decode(ids) for ids in expected]


def test_from_gguf(tmp_path: Path, bpe_vocab: tuple[list[str], list[str]]) -> None:
    metadata = bpe_metadata(*bpe_vocab, special=[("<s>", CONTROL)], pre="llama-bpe", bos_token_id=4000)
    tokenizer = from_gguf(write_gguf(tmp_path / "vocab.gguf", metadata))
    expected = from_metadata(metadata)
    for text in nasty_texts(50, seed=13):
        assert tokenizer.encode(text) == expected.encode(text)


def test_spm_from_gguf(tmp_path: Path, spm_model: sentencepiece.SentencePieceProcessor) -> None:
    metadata = spm_metadata(spm_model)
    tokenizer = from_gguf(write_gguf(tmp_path / "vocab.gguf", metadata))
    for text in nasty_texts(50, seed=13):
        assert tokenizer.encode(text) == from_metadata(metadata).encode(text)


# -- long inputs: anything quadratic takes minutes here and meets the timeout ------------------------------------------

RUNS: list[Any] = ["a", "A", " ", "\n", "!", "1", "é", "中", "\u0301", "'", " \n", " a", "\t ", "1a", "\x80"]


@pytest.mark.parametrize("name", slow_except(DISTINCT, "default", "kimi-k2"))
def test_long_runs(bpe_vocab: tuple[list[str], list[str]], name: str) -> None:
    tokenizer = from_metadata(bpe_metadata(*bpe_vocab, pre=name))
    for run in RUNS:
        text = run * (50_000 // len(run))
        for tail in ("", "x"):
            assert tokenizer.decode(tokenizer.encode(text + tail)) == text + tail


@pytest.mark.parametrize("pre", ["gemma4", "sarvam-moe"])
def test_long_runs_without_pieces(pre: str) -> None:
    tokens = ["a", "aa", "aaaa", "▁", "▁▁", "\n", "x", *(f"<0x{byte:02X}>" for byte in range(256))]
    metadata = bpe_metadata(tokens, ["a a", "aa aa", "▁ ▁"], pre=pre)
    metadata["tokenizer.ggml.token_type"][7:] = [BYTE] * 256
    tokenizer = from_metadata(metadata)
    for run in RUNS:
        text = run * (100_000 // len(run))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_long_runs_in_spm(spm: Tokenizer) -> None:
    for run in RUNS:
        text = run * (100_000 // len(run))
        assert spm.decode(spm.encode(text)) == text
