"""SentencePiece's tokenizer.model -> tokenizer model `llama` (BPE) or `t5` (unigram).

The file is a protobuf; field numbers are those of sentencepiece_model.proto.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from ollama_engine.convert.vocab.protobuf import Message, read_message
from ollama_engine.convert.vocab.tokens import AddedToken, TokenTable
from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer.vocab import TokenType

__all__ = ["SentencePieceModel", "read_sentencepiece", "sentencepiece_table"]

# ModelProto; TrainerSpec; NormalizerSpec; SentencePiece.
PIECES, TRAINER, NORMALIZER = 1, 2, 3
MODEL_TYPE = 3
CHARSMAP, ADD_DUMMY_PREFIX, REMOVE_EXTRA_WHITESPACES = 2, 3, 4
TEXT, SCORE, KIND = 1, 2, 3

UNIGRAM, BPE = 1, 2
MODELS = {UNIGRAM: "t5", BPE: "llama"}
KINDS = {
    1: TokenType.NORMAL, 2: TokenType.UNKNOWN, 3: TokenType.CONTROL, 4: TokenType.USER_DEFINED, 5: TokenType.UNUSED,
    6: TokenType.BYTE,
}  # fmt: skip


@dataclass(frozen=True)
class SentencePieceModel:
    """The fields of a tokenizer.model that conversion reads. Pieces are (text, score, TokenType)."""

    model: str
    pieces: list[tuple[str, float, TokenType]]
    add_space_prefix: bool
    remove_extra_whitespaces: bool
    charsmap: bytes


def read_sentencepiece(data: bytes, home: str) -> SentencePieceModel:
    """Raises ModelFormatError for a broken file, UnsupportedModelError for a model of words or characters."""
    message = read_message(data, home)
    trainer = _nested(message, TRAINER, home)
    normalizer = _nested(message, NORMALIZER, home)
    kind = _number(trainer, MODEL_TYPE, UNIGRAM)
    if kind not in MODELS:
        raise UnsupportedModelError(f"{home}: SentencePiece model type {kind}; supported: unigram (1) and BPE (2)")
    pieces = [_piece(entry, home) for entry in message.get(PIECES, [])]
    if not pieces:
        raise ModelFormatError(f"{home}: no pieces; is it a SentencePiece model?")
    charsmap = normalizer.get(CHARSMAP, [b""])[-1]
    return SentencePieceModel(
        MODELS[kind],
        pieces,
        bool(_number(normalizer, ADD_DUMMY_PREFIX, 1)),
        bool(_number(normalizer, REMOVE_EXTRA_WHITESPACES, 1)),
        charsmap if isinstance(charsmap, bytes) else b"",
    )


def sentencepiece_table(model: SentencePieceModel, added: Iterable[AddedToken], n_vocab: int) -> TokenTable:
    """The rows for a vocabulary of `n_vocab` tokens."""
    table = TokenTable.empty(model.model, "default", n_vocab, scored=True)
    for id_, (text, score, kind) in enumerate(model.pieces):
        table.put(id_, text, kind, score)
    # A piece that is listed as added too keeps its score; so does the type of a byte.
    known = {text: id_ for id_, (text, _, _) in enumerate(model.pieces)}
    table.put_added(token for token in added if known.get(token.text) != token.id or token.special)
    table.flags["add_space_prefix"] = model.add_space_prefix
    if model.model == "t5":
        table.flags["remove_extra_whitespaces"] = model.remove_extra_whitespaces
        if model.charsmap:
            table.flags["precompiled_charsmap"] = model.charsmap
    return table


def _nested(message: Message, field: int, home: str) -> Message:
    value = message.get(field, [b""])[-1]
    return read_message(value, home) if isinstance(value, bytes) else {}


def _number(message: Message, field: int, default: int) -> int:
    value = message.get(field, [default])[-1]
    return value if isinstance(value, int) else default


def _piece(entry: int | bytes, home: str) -> tuple[str, float, TokenType]:
    fields = read_message(entry, home) if isinstance(entry, bytes) else {}
    text = fields.get(TEXT, [b""])[-1]
    (score,) = struct.unpack("<f", struct.pack("<I", _number(fields, SCORE, 0)))
    kind = KINDS.get(_number(fields, KIND, 1))
    if not isinstance(text, bytes) or kind is None:
        raise ModelFormatError(f"{home}: a piece is not as sentencepiece_model.proto has it")
    return text.decode("utf-8", "surrogateescape"), score, kind
