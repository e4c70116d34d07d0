"""Vocabularies for tests: small ones trained on the spot, and the GGUF metadata that describes them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import sentencepiece

from tests.support.gguf_files import write_and_close

if TYPE_CHECKING:
    from tokenizers import Tokenizer

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
ALPHABET = [chr(code) for code in (*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x144))]
"""A character for each byte, as GPT-2 has them."""


def bpe_metadata(
    tokens: Sequence[str],
    merges: Sequence[str] = (),
    *,
    special: Iterable[tuple[str, int]] = (),
    pre: str = "gpt-2",
    model: str = "gpt2",
    **keys: Any,
) -> dict[str, Any]:
    """Metadata of a byte-pair vocabulary; `special` tokens (text, type) follow the others."""
    special = list(special)
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": [*tokens, *(text for text, _ in special)],
        "tokenizer.ggml.token_type": [NORMAL] * len(tokens) + [kind for _, kind in special],
        "tokenizer.ggml.merges": list(merges),
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def train_bpe(texts: Iterable[str], size: int) -> tuple[list[str], list[str]]:
    """(tokens, merges) learnt without any pre-tokenizer, so that merges reach over every border that one may cut."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers  # noqa: PLC0415 (some Pythons lack it)

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(vocab_size=size, initial_alphabet=ALPHABET, show_progress=False, max_token_length=24)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tokens, [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]


def hf_bpe(tokens: Sequence[str], merges: Sequence[str], *, ignore_merges: bool = False) -> Tokenizer:
    """The `tokenizers` library on the same vocabulary; its pre-tokenizer is left to the caller."""
    from tokenizers import Tokenizer, models  # noqa: PLC0415 (some Pythons lack it)

    pairs = [(left, right) for left, right in (merge.split(" ") for merge in merges)]
    return Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, pairs, ignore_merges=ignore_merges))


def train_spm(texts: Iterable[str], size: int, **options: Any) -> sentencepiece.SentencePieceProcessor:
    buffer = io.BytesIO()
    defaults: dict[str, Any] = {
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "allow_whitespace_only_pieces": True,
        "split_digits": True,
        "character_coverage": 0.995,
        "minloglevel": 2,
    }
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_writer=buffer, vocab_size=size, **{**defaults, **options}
    )
    return sentencepiece.SentencePieceProcessor(model_proto=buffer.getvalue())


def spm_metadata(
    model: sentencepiece.SentencePieceProcessor, *, user_defined: Sequence[str] = (), **keys: Any
) -> dict[str, Any]:
    """Metadata as the converters write it; the library does not tell which pieces are user-defined."""
    ids = range(model.vocab_size())
    types = [USER_DEFINED if model.id_to_piece(i) in user_defined else _spm_type(model, i) for i in ids]
    return {
        "general.architecture": "llama",
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
        "tokenizer.ggml.scores": np.array([model.get_score(i) for i in ids], np.float32),
        "tokenizer.ggml.token_type": types,
        **{f"tokenizer.ggml.{key}": value for key, value in keys.items()},
    }


def _spm_type(model: sentencepiece.SentencePieceProcessor, token_id: int) -> int:
    kinds = ((model.is_control, CONTROL), (model.is_unknown, UNKNOWN), (model.is_unused, UNUSED), (model.is_byte, BYTE))
    return next((kind for test, kind in kinds if test(token_id)), NORMAL)


def with_unused(model: bytes, unused: Callable[[int], bool]) -> bytes:
    """A serialized SentencePiece model whose chosen pieces are of type UNUSED.

    A model is a protobuf message; its field 1 holds the pieces, first of all, and field 3 of a piece is the type. Of a
    field given twice the last counts.
    """
    out = bytearray()
    at = index = 0
    while model[at] == 0x0A:
        size, start = model[at + 1], at + 2
        if size & 0x80:
            size, start = (size & 0x7F) | model[at + 2] << 7, at + 3
        piece = model[start : start + size] + (bytes([0x18, UNUSED]) if unused(index) else b"")
        out += bytes([0x0A, *([len(piece)] if len(piece) < 0x80 else [len(piece) & 0x7F | 0x80, len(piece) >> 7])])
        out += piece
        at, index = start + size, index + 1
    return bytes(out) + model[at:]


def write_gguf(path: Path, metadata: dict[str, Any]) -> Path:
    """Write a GGUF file with this vocabulary and no tensors."""
    writer = gguf.GGUFWriter(path, metadata["general.architecture"])
    for key, value in metadata.items():
        if isinstance(value, (list, np.ndarray)):
            writer.add_array(key, list(value) if not isinstance(value, np.ndarray) else value.tolist())
        elif isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif key != "general.architecture":
            writer.add_string(key, value)
    write_and_close(writer)
    return path
