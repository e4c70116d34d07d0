"""Owns what a converted vocabulary is, and the rules for added tokens that all kinds of tokenizers share."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ollama_engine.convert.late_warnings import warn
from ollama_engine.convert.source.folder import ModelFolder
from ollama_engine.errors import ModelFormatError
from ollama_engine.tokenizer.vocab import TokenType

__all__ = ["AddedToken", "TokenTable", "added_tokens", "looks_special"]

logger = logging.getLogger(__name__)

PADDING_SCORE = -10000.0
ADDED_SCORE = -1000.0
"""Scores that llama.cpp's converter gives to what SentencePiece does not score."""


@dataclass
class TokenTable:
    """One row for each row of the token embedding. `model` and `pre` are GGUF's names."""

    model: str
    pre: str
    texts: list[str]
    types: list[int]
    scores: list[float] | None = None
    merges: list[str] | None = None
    flags: dict[str, Any] = field(default_factory=dict)
    """More keys below `tokenizer.ggml.`."""

    @classmethod
    def empty(cls, model: str, pre: str, n_vocab: int, *, scored: bool) -> TokenTable:
        """Padding only, as ids that no text leads to."""
        texts = [f"[PAD{i}]" for i in range(n_vocab)]
        scores = [PADDING_SCORE] * n_vocab if scored else None
        return cls(model, pre, texts, [int(TokenType.UNUSED)] * n_vocab, scores)

    def put(self, id_: int, text: str, kind: int, score: float = 0.0) -> None:
        """Fill a row. A token outside of the embedding cannot be used: it is logged and left out."""
        if not 0 <= id_ < len(self.texts):
            warn(logger, "token %r has id %d, but the model has %d; it is left out", text, id_, len(self.texts))
            return
        self.texts[id_], self.types[id_] = text, int(kind)
        if self.scores is not None:
            self.scores[id_] = score

    def put_added(self, tokens: Iterable[AddedToken]) -> None:
        """Rows of tokens that were added to the vocabulary; they replace what stands there."""
        for token in tokens:
            if token.special or looks_special(token.text):
                self.put(token.id, token.text, TokenType.CONTROL, ADDED_SCORE)
            else:
                # User-defined tokens are looked for in plain text, which has spaces.
                self.put(token.id, token.text.replace("▁", " "), TokenType.USER_DEFINED, ADDED_SCORE)


@dataclass(frozen=True)
class AddedToken:
    """A token that is found in text before the tokenizer proper runs."""

    id: int
    text: str
    special: bool


def added_tokens(folder: ModelFolder, tokenizer: Mapping[str, Any] | None) -> dict[int, AddedToken]:
    """Added tokens by id, of `added_tokens.json`, tokenizer_config.json and the `added_tokens` of a tokenizer.json.

    Raises ModelFormatError for entries of another form.
    """
    tokens: dict[int, AddedToken] = {}
    try:
        for text, id_ in (folder.json("added_tokens.json") or {}).items():
            tokens[int(id_)] = AddedToken(int(id_), str(text), False)
        config = folder.json("tokenizer_config.json") or {}
        for key, entry in (config.get("added_tokens_decoder") or {}).items():
            tokens[int(key)] = AddedToken(int(key), str(entry["content"]), bool(entry.get("special")))
        for entry in (tokenizer or {}).get("added_tokens") or []:
            tokens[int(entry["id"])] = AddedToken(int(entry["id"]), str(entry["content"]), bool(entry.get("special")))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ModelFormatError(f"{folder.path}: added tokens are not as expected: {error!r}") from None
    return tokens


def looks_special(text: str) -> bool:
    """Whether a token steers the model although its files call it ordinary (as llama.cpp's converter has it)."""
    return (
        text in ("<pad>", "<mask>", "<2mass>", "[@BOS@]")
        or (text.startswith("<|") and text.endswith("|>"))
        or (text.startswith("<｜") and text.endswith("｜>"))
        or (text.startswith("<unused") and text.endswith(">"))
    )
