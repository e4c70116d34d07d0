"""Unigram vocabularies against the `sentencepiece` library, on models trained here.

Of two ways to cut a text whose scores are the same, pieces in another order, ours is the one found first, as in the
`tokenizers` library. SentencePiece adds up float32, and what it takes of the two is a matter of rounding.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sentencepiece

from ollama_engine.convert.vocab.sentencepiece import read_sentencepiece
from ollama_engine.errors import ModelFormatError, TokenizerError
from ollama_engine.tokenizer import Tokenizer, from_metadata
from ollama_engine.tokenizer.charsmap import Charsmap
from ollama_engine.tokenizer.vocab import TokenType
from tests.tokenizer.corpus import nasty_texts, prose
from tests.tokenizer.vocabs import spm_metadata, train_spm

Model = sentencepiece.SentencePieceProcessor
CORPUS = [*nasty_texts(2_000, seed=8), prose(20_000)]
NFKC = {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True}


def train(**options: Any) -> Model:
    return train_spm(CORPUS, 900, model_type="unigram", **{"hard_vocab_limit": False, **options})


def tokenizer(model: Model, **keys: Any) -> Tokenizer:
    found = read_sentencepiece(model.serialized_model_proto(), "trained here")
    said = {"remove_extra_whitespaces": found.remove_extra_whitespaces, "add_space_prefix": found.add_space_prefix}
    if found.charsmap:
        said["precompiled_charsmap"] = np.frombuffer(found.charsmap, np.uint8)
    return from_metadata(t5_metadata(model, unknown_token_id=0, **said, **keys))


def t5_metadata(model: Model, **keys: Any) -> dict[str, Any]:
    return spm_metadata(model, **keys) | {"tokenizer.ggml.model": "t5"}


def texts(count: int, seed: int) -> list[str]:
    return [text.replace("\x00", "") for text in nasty_texts(count, seed)]  # where SentencePiece ends a text


def check(ours: Tokenizer, theirs: Model, samples: list[str]) -> None:
    ties = 0
    for text in samples:
        a, b = ours.encode(text, add_special=False, parse_special=False), theirs.encode(text)
        assert sorted(a) == sorted(b), repr(text)
        ties += a != b
    assert ties <= len(samples) / 200


@pytest.fixture(scope="module")
def published() -> Model:
    """As T5 and XLM-R are: NFKC, spaces squeezed, no bytes."""
    return train(byte_fallback=False, **NFKC)


def test_as_t5_is(published: Model) -> None:
    check(tokenizer(published), published, [*texts(10_000, seed=1), prose(20_000, seed=3)])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"add_dummy_prefix": False},
        {"byte_fallback": False, "character_coverage": 0.98},
        {"split_by_whitespace": False, "max_sentencepiece_length": 24},
        NFKC,
    ],
    ids=str,
)
def test_options(options: dict[str, Any]) -> None:
    model = train(**options)
    check(tokenizer(model), model, texts(3_000, seed=4))


def test_round_trip() -> None:
    model = train()
    ours = tokenizer(model)
    assert all(ours.decode(ours.encode(text)) == text for text in texts(2_000, seed=2))


def test_bytes_that_are_no_text() -> None:
    ours = tokenizer(train())
    assert ours.decode_bytes(ours.encode(b"a\xff\xc3b", add_special=False)) == b"a\xff\xc3b"


def test_defaults_of_t5(published: Model) -> None:
    """The end is added, no beginning is."""
    ours = tokenizer(published, eos_token_id=2)
    assert (ours.add_bos, ours.add_eos) == (False, True)
    assert ours.encode("Hello") == [*published.encode("Hello"), 2]


def test_a_text_of_nothing(published: Model) -> None:
    ours = tokenizer(published)
    for text in ("", " ", "   \n\t "):
        assert ours.encode(text, add_special=False) == published.encode(text) == []


def test_normalized_text_is_that_of_sentencepiece() -> None:
    model = train(**NFKC)
    data = read_sentencepiece(model.serialized_model_proto(), "trained here").charsmap
    charsmap = Charsmap(data)
    theirs = sentencepiece.SentencePieceNormalizer(
        rule_name="nmt_nfkc", add_dummy_prefix=False, escape_whitespaces=False, remove_extra_whitespaces=False
    )
    for text in texts(3_000, seed=6):
        assert charsmap.apply(text) == theirs.normalize(text), repr(text)


# -- refused -----------------------------------------------------------------------------------------------------------


def test_no_scores(published: Model) -> None:
    metadata = t5_metadata(published)
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(ModelFormatError, match=r"scores is missing; tokenizer model 't5'"):
        from_metadata(metadata)


@pytest.mark.parametrize("bad", [np.nan, -np.inf])
def test_scores_that_are_no_numbers(bad: float, published: Model) -> None:
    metadata = t5_metadata(published)
    metadata["tokenizer.ggml.scores"][70] = bad
    with pytest.raises(ModelFormatError, match="not finite"):
        from_metadata(metadata)


def test_a_character_without_a_token(published: Model) -> None:
    metadata = t5_metadata(published)
    metadata["tokenizer.ggml.token_type"][0] = 1
    with pytest.raises(TokenizerError, match="byte 0xf0 has no token"):
        from_metadata(metadata).encode("\U0001f9ff")


def test_unknown_characters_around_one_spelled_in_bytes() -> None:
    """A vocabulary with some of the byte pieces only; a run of unknown characters is one token."""
    metadata = t5_metadata(train(byte_fallback=True), unknown_token_id=0)
    spelled = {f"<0x{byte:02X}>" for byte in "\U0001f9ff".encode()}
    for id_, piece in enumerate(metadata["tokenizer.ggml.tokens"]):
        if metadata["tokenizer.ggml.token_type"][id_] == TokenType.BYTE and piece not in spelled:
            metadata["tokenizer.ggml.token_type"][id_] = TokenType.UNUSED
    ours = from_metadata(metadata)
    unknown, known = "\u4e00", "\U0001f9ff"
    ids = ours.encode(unknown * 2 + known + unknown * 2, add_special=False)
    rows = metadata["tokenizer.ggml.tokens"]
    told = [rows[id_] for id_ in ids if rows[id_] != "▁"]
    assert told == ["<unk>", "<0xF0>", "<0x9F>", "<0xA7>", "<0xBF>", "<unk>"]


def test_broken_tables_of_replacements_are_refused_and_never_crash() -> None:
    good = read_sentencepiece(train(**NFKC).serialized_model_proto(), "trained here").charsmap
    size = 4 + int.from_bytes(good[:4], "little")
    for data in (b"\x01", b"\x08\0\0\0abcd", b"\x03\0\0\0abcd\0", good[:-1], good[:size]):
        with pytest.raises(ModelFormatError, match="precompiled_charsmap has"):
            Charsmap(data)
    rng, refused = np.random.default_rng(3), 0
    for _ in range(300):
        spoiled = np.frombuffer(good, np.uint8).copy()
        where = rng.integers(4, len(good) - 1, 3000)
        spoiled[where] = rng.integers(0, 256, len(where))
        try:
            Charsmap(spoiled.tobytes()).apply("".join(texts(5, seed=5)))
        except ModelFormatError:
            refused += 1
    assert refused
