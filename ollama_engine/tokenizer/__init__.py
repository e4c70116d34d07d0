"""Text to token ids and back, from the metadata of a GGUF file. Needs no loaded model.

    tokenizer = from_gguf("model.gguf")
    ids = tokenizer.encode("Hello")
    tokenizer.decode(ids)

- `metadata`, `vocab`, `special_tokens`: the vocabulary of a file, corrected by rules about known tokens
- `pretokenizer_table`, `pretokenizer`, `bpe`: byte-pair encoding
- `spm`: SentencePiece's byte-pair encoding; `unigram`, `charsmap`: its unigram model, and the normalization of its text
- `wordpiece`: BERT's WordPiece
- `_merge`, `_texts`: the inner loops of all these but WordPiece, in C
- `base`: Tokenizer; `checkpoint`: how long encoding is ended; `detokenizer`: streams of ids to text; `utf8`: its bytes
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from typing import Any

from ollama_engine.ml.gguf.gguf_file import GGUFFile
from ollama_engine.tokenizer.base import Tokenizer
from ollama_engine.tokenizer.bpe import BpeModel
from ollama_engine.tokenizer.checkpoint import Checkpoint
from ollama_engine.tokenizer.detokenizer import Detokenizer
from ollama_engine.tokenizer.metadata import Fields
from ollama_engine.tokenizer.no_text import NO_TEXT, NoText
from ollama_engine.tokenizer.spm import SpmModel
from ollama_engine.tokenizer.vocab import read_vocabulary

__all__ = ["Checkpoint", "Detokenizer", "Fields", "Tokenizer", "from_gguf", "from_metadata"]


def from_metadata(metadata: Mapping[str, Any]) -> Tokenizer:
    """The tokenizer that GGUF metadata describes (`tokenizer.*` and some `general.*` keys).

    Raises UnsupportedModelError for a tokenizer or pre-tokenizer unknown here, ModelFormatError for broken metadata.
    """
    if metadata.get("tokenizer.ggml.model") == "no_vocab":
        return Tokenizer(NO_TEXT, NoText())
    vocab = read_vocabulary(metadata)
    if vocab.model == "llama":
        return Tokenizer(vocab, SpmModel(vocab))
    if vocab.model == "bert":
        from ollama_engine.tokenizer.wordpiece import WordPieceModel  # noqa: PLC0415 (regex takes longer than a header)

        return Tokenizer(vocab, WordPieceModel(vocab))
    fields = Fields(metadata)
    if vocab.model == "t5":
        from ollama_engine.tokenizer.unigram import UnigramModel  # noqa: PLC0415 (few files have one; 1 ms)

        squeeze = fields.flag("remove_extra_whitespaces", False)
        return Tokenizer(vocab, UnigramModel(vocab, fields.raw("precompiled_charsmap"), squeeze=squeeze))
    return Tokenizer(vocab, BpeModel(vocab, fields.texts("merges") if "merges" in fields else None))


def from_gguf(path: str | PathLike[str]) -> Tokenizer:
    """The tokenizer of a GGUF file. A file with a vocabulary and no weights is enough.

    Raises OSError when the file cannot be opened, and what `from_metadata` raises.
    """
    with GGUFFile(path) as file:
        return from_metadata(file.metadata)
