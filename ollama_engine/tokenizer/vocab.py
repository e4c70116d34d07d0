"""Owns what a vocabulary is: texts, types and scores of the tokens, and which ids are special."""

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
from ollama_engine.tokenizer.special_tokens import apply_text_rules, find_known_texts, strip_rules

__all__ = ["TokenType", "Vocabulary", "read_vocabulary"]

MODELS = ("gemma4", "gpt2", "llama", "t5", "whitespace")
SENTENCEPIECE = ("llama", "t5")


class TokenType(IntEnum):
    """`tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class Vocabulary:
    """A vocabulary as the metadata gives it, after the rules that go by token text."""

    model: str
    texts: list[str]
    """By id; raw vocabulary text (GPT-2 spelling of bytes, U+2581 for spaces)."""
    types: NDArray[np.uint8]
    """TokenType by id; other values count as undefined."""
    scores: NDArray[np.float32] | None
    spec: PreTokenizerSpec | None
    """None for SentencePiece."""
    bos_id: int | None
    eos_id: int | None
    unknown_id: int | None
    eog_ids: frozenset[int]
    add_bos: bool
    add_eos: bool
    add_space_prefix: bool
    lowercase: bool
    lstrip_ids: frozenset[int]
    """Special tokens that swallow the white space before them."""
    rstrip_ids: frozenset[int]


def read_vocabulary(metadata: Mapping[str, Any]) -> Vocabulary:
    """Raises UnsupportedModelError for an unknown tokenizer or pre-tokenizer, ModelFormatError for broken metadata."""
    fields = Fields(metadata)
    model = fields.text("model")
    if model not in MODELS:
        what = f"tokenizer.ggml.model is {model!r}" if model else "the file has no tokenizer (tokenizer.ggml.model)"
        raise UnsupportedModelError(f"{what}; supported tokenizers: {', '.join(MODELS)}")
    architecture = str(metadata.get("general.architecture", ""))
    pre = fields.text("pre")
    spec = None if model in SENTENCEPIECE else find_spec("gemma4" if model == "gemma4" else pre, architecture, model)

    texts = _texts(fields)
    n_vocab = len(texts)
    ids = find_known_texts(texts)
    types = _types(fields, n_vocab)
    unknown_id = _special_id(fields, "unknown", types, default=_usual_unknown(model, types))
    bos_id = _special_id(fields, "bos", types, default={"llama": 1, "gpt2": 11}.get(model))
    eos_id = _special_id(fields, "eos", types, default={"llama": 2, "gpt2": 11, "t5": 1}.get(model))
    eog_ids = apply_text_rules(fields, ids, types, eos_id)
    lstrip_ids, rstrip_ids = strip_rules(metadata, pre, architecture, ids, types)
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
        add_eos=_add(fields, "eos", model == "t5", eos_id),
        add_space_prefix=model in SENTENCEPIECE and fields.flag("add_space_prefix", True),
        lowercase=model == "whitespace" and fields.flag("normalizer.lowercase", False),
        lstrip_ids=lstrip_ids,
        rstrip_ids=rstrip_ids,
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


def _usual_unknown(model: str, types: NDArray[np.uint8]) -> int | None:
    """llama.cpp has 2 for t5; models made of XLM-R have 3."""
    if model == "t5":
        found = np.flatnonzero(types == TokenType.UNKNOWN)
        return int(found[0]) if found.size else None
    return 0 if model == "llama" else None


def _special_id(fields: Fields, kind: str, types: NDArray[np.uint8], default: int | None) -> int | None:
    """The id under the key, else the default of the tokenizer model.

    llama.cpp takes its defaults (1 and 2 for `llama`, 11 for `gpt2`: Falcon's) blindly. Here a default that is an
    ordinary token of this vocabulary does not count: generation must not stop at a comma.
    """
    name = f"{kind}_token_id"
    id_ = fields.token_id(name, len(types))
    if id_ is not None or name in fields or default is None or default >= len(types):
        return id_
    return default if types[default] in (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.USER_DEFINED) else None


def _add(fields: Fields, kind: str, default: bool, id_: int | None) -> bool:
    key = f"add_{kind}_token"
    if not fields.flag(key, default):
        return False
    if id_ is None and key in fields:
        raise ModelFormatError(f"tokenizer.ggml.{key} is true, but tokenizer.ggml.{kind}_token_id names no token")
    return id_ is not None


def _add_bos(fields: Fields, model: str, spec: PreTokenizerSpec | None, bos_id: int | None) -> bool:
    if spec is not None and spec.force_bos:
        return bos_id is not None
    return _add(fields, "bos", model == "llama" if spec is None else spec.add_bos, bos_id)
