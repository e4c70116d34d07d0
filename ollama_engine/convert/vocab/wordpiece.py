"""WordPiece, of a tokenizer.json or a vocab.txt -> tokenizer model `bert`.

GGUF turns the marks around: a piece that starts a word has U+2581 before it, one that continues a word has nothing,
where BERT marks the latter with "##". Special tokens stay as they are.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ollama_engine.convert.late_warnings import warn
from ollama_engine.convert.vocab.tokens import AddedToken, TokenTable
from ollama_engine.tokenizer.vocab import TokenType

__all__ = ["read_vocab_txt", "wordpiece_table"]

logger = logging.getLogger(__name__)

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
"""BERT's own; a vocab.txt does not tell them from pieces."""


def wordpiece_table(
    vocab: Mapping[str, int], prefix: str, added: Iterable[AddedToken], normalizer: Mapping[str, Any] | None,
    n_vocab: int,
) -> TokenTable:  # fmt: skip
    """The rows for a vocabulary whose continuing pieces start with `prefix`."""
    table = TokenTable.empty("bert", "jina-v2-en", n_vocab, scored=False)
    for text, id_ in vocab.items():
        if text in SPECIAL:
            table.put(id_, text, TokenType.CONTROL)
        else:
            table.put(id_, phantom_space(text, prefix), TokenType.NORMAL)
    table.put_added(token for token in added if token.special)
    for name, value in _normalizer_flags(normalizer).items():
        table.flags[f"normalizer.{name}"] = value
    return table


def phantom_space(text: str, prefix: str) -> str:
    """A piece in GGUF's spelling."""
    return text[len(prefix) :] if prefix and text.startswith(prefix) else "▁" + text


def read_vocab_txt(text: str) -> dict[str, int]:
    """One piece a line; the line number is the id."""
    return {line: id_ for id_, line in enumerate(text.rstrip("\n").split("\n"))}


def _normalizer_flags(spec: Mapping[str, Any] | None) -> dict[str, bool]:
    """lowercase and strip_accents, where the normalizer says them; null means "as lowercase"."""
    flags: dict[str, bool] = {}
    spec = spec or {}
    for part in spec.get("normalizers") or [spec]:
        kind = part.get("type")
        if kind == "Lowercase":
            flags["lowercase"] = True
        elif kind == "StripAccents":
            flags["strip_accents"] = True
        elif kind == "BertNormalizer":
            for name in ("clean_text", "handle_chinese_chars"):
                if part.get(name) is False:
                    warn(logger, "%s is off in this tokenizer, which no GGUF file says: some texts are cut otherwise",
                                   name)  # fmt: skip
            flags |= {k: part[k] for k in ("lowercase", "strip_accents") if isinstance(part.get(k), bool)}
    return flags
