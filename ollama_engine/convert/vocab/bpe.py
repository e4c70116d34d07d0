"""BPE of a tokenizer.json -> tokenizer model `gpt2`; over U+2581 with bytes as a fallback: `llama` or `gemma4`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ollama_engine.convert.vocab.tokens import AddedToken, TokenTable
from ollama_engine.errors import ModelFormatError
from ollama_engine.tokenizer.vocab import TokenType

__all__ = ["bpe_table"]


def bpe_table(model: Mapping[str, Any], added: Iterable[AddedToken], pre: str, n_vocab: int, home: str) -> TokenTable:
    """The rows for `model` of a tokenizer.json. Raises ModelFormatError when it is not as that format has it."""
    entries = model.get("vocab")
    if not isinstance(entries, dict) or not all(type(id_) is int for id_ in entries.values()):
        raise ModelFormatError(f"{home}: model.vocab is not an object of token ids")
    table = TokenTable.empty("gpt2", pre, n_vocab, scored=False)
    for text, id_ in entries.items():
        table.put(id_, text, TokenType.NORMAL)
    table.put_added(added)
    table.merges = [_merge(entry, home) for entry in _list(model, "merges", home)]
    if model.get("end_of_word_suffix"):
        table.flags["normalizer.lowercase"] = True  # CLIP's, which is known by its suffix
    return table


def _list(model: Mapping[str, Any], name: str, home: str) -> list[Any]:
    found = model.get(name)
    if not isinstance(found, list):
        raise ModelFormatError(f"{home}: model.{name} is a {type(found).__name__}, expected a list")
    return found


def _merge(entry: Any, home: str) -> str:
    """A merge as "left right", from that or from a pair. A space in a half is spelled as the byte alphabet has it."""
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list) and len(entry) == 2 and all(isinstance(half, str) for half in entry):
        return " ".join(half.replace(" ", "Ġ") for half in entry)
    raise ModelFormatError(f"{home}: a merge is {entry!r:.60}, expected two strings")


def scored_bpe_table(tokenizer: Mapping[str, Any], added: Iterable[AddedToken], n_vocab: int, home: str) -> TokenTable:
    """A SentencePiece vocabulary that was published as tokenizer.json: BPE over U+2581 with bytes as a fallback.

    Its pieces had scores, and merges were made of them in that order; so the place of the first merge that makes a
    piece stands for its score. Raises ModelFormatError as `bpe_table` does.
    """
    model = tokenizer["model"]
    table = bpe_table(model, (), "default", n_vocab, home)
    table.model = "llama"
    table.scores = [0.0] * n_vocab
    ranks: dict[str, int] = {}
    for rank, entry in enumerate(_list(model, "merges", home)):
        halves = entry.split(" ") if isinstance(entry, str) else entry
        ranks.setdefault("".join(halves), rank)
    for text, id_ in model["vocab"].items():
        kind = TokenType.BYTE if _is_byte(text) else TokenType.NORMAL
        table.put(id_, text, TokenType.UNKNOWN if text == model.get("unk_token") else kind, -float(ranks.get(text, 0)))
    # Pieces that no merge makes are single characters; below all others, as SentencePiece scores them.
    table.put_added(added)
    table.merges = None
    table.flags["add_space_prefix"] = _adds_space(tokenizer)
    return table


def raw_bpe_table(tokenizer: Mapping[str, Any], added: Iterable[AddedToken], n_vocab: int, home: str) -> TokenTable:
    """The same kind of vocabulary with its merges, for models whose pieces these make (Gemma 4): tokenizer model
    `gemma4`. Raises ModelFormatError as `bpe_table` does.
    """
    table = scored_bpe_table(tokenizer, added, n_vocab, home)
    table.model = "gemma4"
    table.merges = [_merge(entry, home) for entry in _list(tokenizer["model"], "merges", home)]
    return table


def _is_byte(text: str) -> bool:
    return len(text) == 6 and text.startswith("<0x") and text.endswith(">")


def _adds_space(tokenizer: Mapping[str, Any]) -> bool:
    """Whether a normalizer or Metaspace puts a space before the text."""
    normalizer, before = tokenizer.get("normalizer") or {}, tokenizer.get("pre_tokenizer") or {}
    if any(part.get("type") == "Prepend" for part in normalizer.get("normalizers") or [normalizer]):
        return True
    return before.get("type") == "Metaspace" and before.get("prepend_scheme", "always") != "never"
