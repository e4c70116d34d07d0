"""The tokenizer: SentencePiece's BPE of 512 pieces, learnt from the questions and answers, in Gemma's manner.

No space is put in front, text is not normalized, line breaks are tokens of their own, unknown characters become bytes.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from random import Random

import sentencepiece
from sentencepiece import sentencepiece_model_pb2 as proto
from transformers import GemmaTokenizer

from .model import N_VOCAB
from .questions import DESCRIBE, ask, describe
from .scene import draw_scene

__all__ = ["IDS", "MARKS", "hugging_face", "train_tokenizer"]

MARKS = ("<start_of_turn>", "<end_of_turn>", "<start_of_image>", "<end_of_image>", "<image_soft_token>")
LINES = ("\n", "\n\n", "\n\n\n")
BEFORE = ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>")
IDS = {text: id_ for id_, text in enumerate((*BEFORE, *MARKS, *LINES))}
SCENES = 4000


def train_tokenizer(path: Path) -> None:
    """Write `tokenizer.model`; the same bytes each time."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=_lines(), model_writer=model, model_type="bpe", vocab_size=N_VOCAB,
        pad_id=0, eos_id=1, bos_id=2, unk_id=3, pad_piece="<pad>", eos_piece="<eos>", bos_piece="<bos>",
        unk_piece="<unk>", user_defined_symbols=[*BEFORE[4:], *MARKS, *LINES], byte_fallback=True,
        add_dummy_prefix=False, remove_extra_whitespaces=False, normalization_rule_name="identity",
        character_coverage=1.0, hard_vocab_limit=False, num_threads=1,
    )  # fmt: skip
    path.write_bytes(model.getvalue())


def _lines() -> Iterator[str]:
    """Questions and answers, each as it stands behind a line break and behind a word."""
    rng = Random(1)
    for _ in range(SCENES):
        scene = draw_scene(rng, training=True)
        for text in (*ask(scene, rng), *ask(scene, rng), DESCRIBE[0], describe(scene)):
            yield text
            yield " " + text
    for text in ("user", "model"):
        yield from [text] * SCENES


def hugging_face(path: Path) -> GemmaTokenizer:
    """The tokenizer of transformers for a `tokenizer.model`: its pieces, and the merges that they imply."""
    model = proto.ModelProto()
    model.ParseFromString(path.read_bytes())
    pieces = {piece.piece: id_ for id_, piece in enumerate(model.pieces)}
    scores = {piece.piece: piece.score for piece in model.pieces}
    normal = [piece.piece for piece in model.pieces if piece.type == proto.ModelProto.SentencePiece.NORMAL]
    merges = [
        (text[:cut], text[cut:])
        for text in sorted(normal, key=lambda text: -scores[text])
        for cut in range(1, len(text))
        if text[:cut] in pieces and text[cut:] in pieces
    ]
    tokenizer = GemmaTokenizer(
        vocab=pieces, merges=merges, extra_special_tokens={
            "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>", "image_token": "<image_soft_token>",
        },
    )  # fmt: skip
    tokenizer.add_tokens(list(MARKS), special_tokens=True)
    tokenizer.add_tokens(list(LINES))
    return tokenizer
