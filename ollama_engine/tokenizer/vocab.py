"""Vocabulary: texts, types and scores of the tokens, and which ids are special."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.errors import ModelFormatError, UnsupportedModelError
from ollama_engine.tokenizer.metadata import Fields
from ollama_engine.tokenizer.pretokenizer_table import PreTokenizerSpec, find_spec
from ollama_engine.tokenizer.special_tokens import apply_text_rules, find_known_texts, guarded_tokens, strip_rules

__all__ = ["TokenType", "Vocabulary", "read_vocabulary"]

MODELS = ("bert", "gemma4", "gpt2", "llama", "t5", "whitespace")
SENTENCEPIECE = ("llama", "t5")

DEFAULTS: Mapping[str, Mapping[str, int]] = {
    "bert": {"bos": 101, "sep": 102, "unknown": 100},
    "gpt2": {"bos": 11, "eos": 11},
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "t5": {"eos": 1},
}
"""Default ids of special tokens that a file may omit, by tokenizer model; they are llama.cpp's."""


class TokenType(IntEnum):
    """Kinds of tokens as GGUF numbers them (`tokenizer.ggml.token_type`, after SentencePiece)."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary from metadata, corrected by the rules in `special_tokens`."""

    model: str
    texts: list[str]
    """Raw text of each token (bytes in GPT-2's spelling, U+2581 for spaces)."""
    types: NDArray[np.uint8]
    """TokenType of each token; other values count as undefined."""
    scores: NDArray[np.float32] | None
    spec: PreTokenizerSpec | None
    """None for SentencePiece and WordPiece."""
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eog_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    lowercase: bool
    canonical: bool
    """Whether text loses its punctuation and runs of white space, as SigLIP reads it."""
    strip_accents: bool
    guarded_ids: frozenset[int]
    """User-defined tokens that steer the model, as control tokens do: text becomes them only where those are parsed."""
    lstrip_ids: frozenset[int]
    """Special tokens that strip the white space before them."""
    rstrip_ids: frozenset[int]
    doubles_end: bool = False
    """Whether EOS stands twice between the two texts of a pair, as in RoBERTa and XLM-R."""
    suppressed_ids: frozenset[int] = frozenset()
    """Tokens that an answer never has, such as those which stand for images."""

    @property
    def ordinary(self) -> NDArray[np.bool_]:
        """Whether text may become the token by merging, bool by id."""
        found = np.isin(self.types, (TokenType.NORMAL, TokenType.USER_DEFINED))
        found[list(self.guarded_ids)] = False
        return found


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises UnsupportedModelError for an unknown tokenizer or pre-tokenizer, ModelFormatError for broken metadata."""
    fields = Fields(metadata)
    model = fields.text("model")
    if model not in MODELS:
        what = f"tokenizer.ggml.model is {model!r}" if model else "the file has no tokenizer (tokenizer.ggml.model)"
        raise UnsupportedModelError(f"{what}; supported tokenizers: {', '.join(MODELS)}")
    architecture = str(metadata.get("general.architecture", ""))
    pre = fields.text("pre")
    plain = model in ("bert", *SENTENCEPIECE)
    spec = None if plain else find_spec("gemma4" if model == "gemma4" else pre, architecture, model)

    texts = _texts(fields)
    n_vocab = len(texts)
    ids = find_known_texts(texts)
    types = _types(fields, n_vocab)
    file_types = types.copy()
    unknown_id = _unknown_id(fields, types, model)
    if model == "bert":
        bos_id, eos_id = _around_bert(fields, types)
    else:
        bos_id, eos_id = (_special_id(fields, kind, types, model) for kind in ("bos", "eos"))
    eog_ids = apply_text_rules(fields, ids, types, eos_id)
    lstrip_ids, rstrip_ids = strip_rules(metadata, pre, architecture, ids, types)
    folds = model in ("bert", "whitespace", *SENTENCEPIECE) or (spec is not None and spec.end_of_word)
    lowercase = folds and fields.flag("normalizer.lowercase", model == "bert")
    return Vocabulary(
        model=model,
        texts=texts,
        types=types,
        scores=fields.numbers("scores", n_vocab, np.float32),
        spec=spec,
        bos_id=bos_id,
        eos_id=eos_id,
        unknown_id=unknown_id,
        eog_ids=eog_ids,
        add_bos=_add_bos(fields, model, spec, bos_id),
        # llama.cpp puts [CLS] and [SEP] around every text of BERT, whatever the flags say.
        add_eos=eos_id is not None if model == "bert" else _add(fields, "eos", model == "t5", eos_id),
        add_space_prefix=model == "bert" or (model in SENTENCEPIECE and fields.flag("add_space_prefix", True)),
        lowercase=lowercase,
        canonical=model == "t5" and fields.flag("normalizer.canonical", False),
        strip_accents=model == "bert" and fields.flag("normalizer.strip_accents", lowercase),
        guarded_ids=guarded_tokens(metadata, texts, types, file_types),
        lstrip_ids=lstrip_ids,
        rstrip_ids=rstrip_ids,
        doubles_end=model == "t5" or pre == "roberta-bpe",
        suppressed_ids=frozenset(fields.token_ids("suppress_tokens", n_vocab)),
    )


def _texts(fields: Fields) -> list[str]:
    texts = fields.texts("tokens")
    if not texts:
        raise ModelFormatError("tokenizer.ggml.tokens is missing or empty; the file holds no vocabulary")
    if "" in texts:
        texts = [text or f"[EMPTY_{i}]" for i, text in enumerate(texts)]
    return texts


def _types(fields: Fields, n_vocab: int) -> NDArray[np.uint8]:
    types = fields.numbers("token_type", n_vocab, np.int64)
    if types is None:
        return np.full(n_vocab, TokenType.NORMAL, np.uint8)
    return np.where((types < 0) | (types > 255), 0, types).astype(np.uint8)


def _unknown_id(fields: Fields, types: NDArray[np.uint8], model: str) -> int | None:
    """The unknown token. For t5 without a key, the first of that type: llama.cpp assumes 2, but XLM-R has 3."""
    if model == "t5" and "unknown_token_id" not in fields:
        found = np.flatnonzero(types == TokenType.UNKNOWN)
        return int(found[0]) if found.size else None
    return _special_id(fields, "unknown", types, model)


def _special_id(fields: Fields, kind: str, types: NDArray[np.uint8], model: str) -> int | None:
    """The id under the key, else the default of the tokenizer model.

    llama.cpp applies its defaults unchecked (11 for `gpt2` is Falcon's). Here a default is ignored where that id is an
    ordinary token of this vocabulary: generation must not stop at a comma.
    """
    name = f"{kind}_token_id"
    id_ = fields.token_id(name, len(types))
    default = DEFAULTS.get(model, {}).get(kind)
    if id_ is not None or name in fields or default is None or default >= len(types):
        return id_
    return default if types[default] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED) else None


def _around_bert(fields: Fields, types: NDArray[np.uint8]) -> tuple[int | None, int | None]:
    """The ids before and after a text, BERT's [CLS] and [SEP]. GGUF spells the key "seperator"."""
    first = fields.token_id("cls_token_id", len(types))
    last = fields.token_id("seperator_token_id", len(types))
    return (
        _special_id(fields, "bos", types, "bert") if first is None else first,
        _special_id(fields, "sep", types, "bert") if last is None else last,
    )


def _add(fields: Fields, kind: str, default: bool, id_: int | None) -> bool:
    key = f"add_{kind}_token"
    if not fields.flag(key, default):
        return False
    if id_ is None and key in fields:
        raise ModelFormatError(f"tokenizer.ggml.{key} is true, but tokenizer.ggml.{kind}_token_id names no token")
    return id_ is not None


def _add_bos(fields: Fields, model: str, spec: PreTokenizerSpec | None, bos_id: int | None) -> bool:
    if model == "bert" or (spec is not None and spec.force_bos):
        return bos_id is not None
    return _add(fields, "bos", model == "llama" if spec is None else spec.add_bos, bos_id)
