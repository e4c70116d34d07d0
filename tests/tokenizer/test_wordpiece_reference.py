"""WordPiece against the `tokenizers` library, on a vocabulary trained here."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from tokenizers import Tokenizer as HFTokenizer
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from ollama_engine.tokenizer import Tokenizer, from_metadata
from ollama_engine.tokenizer.vocab import read_vocabulary
from ollama_engine.tokenizer.wordpiece import WordPieceModel
from tests.support.suite import scaled
from tests.tokenizer.corpus import nasty_texts, prose
from tests.tokenizer.vocabs import CONTROL, NORMAL

SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
# (lowercase, strip_accents); None is "as lowercase", for both sides.
KINDS: dict[str, tuple[bool, bool | None]] = {
    "uncased": (True, None),
    "cased": (False, None),
    "lower-with-accents": (True, False),
    "cased-without-accents": (False, True),
}
TINY: dict[str, Any] = {
    "general.architecture": "bert",
    "tokenizer.ggml.model": "bert",
    "tokenizer.ggml.tokens": ["[UNK]", "▁a", "b"],
}


def train(lowercase: bool, strip_accents: bool | None) -> HFTokenizer:
    tokenizer = HFTokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=1800, special_tokens=SPECIALS, limit_alphabet=250, show_progress=False
    )
    tokenizer.train_from_iterator([*nasty_texts(8_000, seed=6), prose(50_000)], trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


def metadata(theirs: HFTokenizer, **keys: Any) -> dict[str, Any]:
    vocab = json.loads(theirs.to_str())["model"]["vocab"]
    texts = sorted(vocab, key=vocab.__getitem__)
    spelled = [t if t in SPECIALS else t[2:] if t.startswith("##") else f"▁{t}" for t in texts]
    return {
        "general.architecture": "bert",
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": spelled,
        "tokenizer.ggml.token_type": [CONTROL if t in SPECIALS else NORMAL for t in texts],
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.unknown_token_id": 1,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items() if value is not None},
    }


@pytest.fixture(scope="module", params=KINDS)
def pair(request: pytest.FixtureRequest) -> tuple[Tokenizer, HFTokenizer]:
    lowercase, strip_accents = KINDS[request.param]
    theirs = train(lowercase, strip_accents)
    keys = {"normalizer.lowercase": lowercase, "normalizer.strip_accents": strip_accents}
    return from_metadata(metadata(theirs, **keys)), theirs


def test_same_ids(pair: tuple[Tokenizer, HFTokenizer]) -> None:
    ours, theirs = pair
    pieces = set()
    texts = nasty_texts(scaled(12_000, quick=2_000), seed=1)
    for text, expected in zip(texts, theirs.encode_batch(texts), strict=True):
        ids = ours.encode(text)
        assert ids == expected.ids, text
        pieces.update(ids)
    # Neither everything unknown, nor nothing.
    assert 1 in pieces
    assert len(pieces) > 500


def test_prose(pair: tuple[Tokenizer, HFTokenizer]) -> None:
    ours, theirs = pair
    text = prose(50_000, seed=4)
    assert ours.encode(text) == theirs.encode(text).ids


# Made to hit a border each: of length, of casing, of what counts as a mark, an ideograph or white space.
EDGES = [
    "", " ", "\x00", "\ufffd", "a" * 100, "a" * 101, "é" * 100, "é" * 101, "the" * 33 + "t", "ΌΔΟΣ ΣΑΣ Σ",
    "İstanbul IŞIK",
    "ẞ ß ﬁ Ǆ", "naïve naïve", "Å Å Å", "中é文", "中́a", "a豈b", "a\U0002b820b", "a\U0002b900b", "a\U0002b920b",
    "a\u00adb", "a\u200db", "a\u2028b", "a\x85b", "a\x0bb", "a\x1cb", "a\u3000b", "a\ue000b", "\u037e\u1fef", "a$b+c~d",
    "a\u20acb", "¿qué?", "“quoted”—dash", "\U0001f600 ok", "don't stop", "[CLS] a [MASK] b[SEP]", "[mask] [unk]",
    "##the ##s", "a ##", "ﾊﾟ ｶﾞ", "한국어 각", "½ ² Ⅷ", "हिन्दी", "ไทย", "עִבְרִית", "\ufeffbom", "\U000e0001tag",
]  # fmt: skip


@pytest.mark.parametrize("text", EDGES, ids=ascii)
def test_edges(text: str, pair: tuple[Tokenizer, HFTokenizer]) -> None:
    ours, theirs = pair
    assert ours.encode(text) == theirs.encode(text).ids


@pytest.mark.parametrize("kind", KINDS)
def test_every_character_is_cut_alike(kind: str) -> None:
    """Those that are since Unicode 3.2 what they are: the library's tables are older than ours."""
    lowercase, strip_accents = KINDS[kind]
    theirs = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    keys = {"normalizer.lowercase": lowercase}
    if strip_accents is not None:
        keys["normalizer.strip_accents"] = strip_accents
    model = WordPieceModel(read_vocabulary({**TINY, **{f"tokenizer.ggml.{key}": value for key, value in keys.items()}}))
    old, new = unicodedata.ucd_3_2_0.category, unicodedata.category
    known = [c for c in map(chr, range(0x110000)) if old(c) == new(c) and old(c) not in ("Cn", "Co", "Cs")]
    assert len(known) > 90_000
    for character in known[:: scaled(1, quick=20)]:
        cut = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(theirs.normalize_str(f"a{character}B"))
        assert model.words(f"a{character}B") == [word for word, _ in cut], f"U+{ord(character):04X}"
