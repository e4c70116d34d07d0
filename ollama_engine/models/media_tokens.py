"""Token ids that stand around images, from keys of the file or found in its vocabulary by their text."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata

__all__ = ["newline_runs", "split_run", "token_id", "token_named", "vocabulary"]

TOKENS = "tokenizer.ggml.tokens"
NEWLINE_IN_BYTES = "\u010a"
"""The character that byte-level BPE writes for a newline (as GPT-2 defined it)."""


def vocabulary(metadata: Metadata) -> Sequence[str]:
    """The texts of all tokens in the order of their ids; empty where the file has none."""
    tokens = metadata.values.get(TOKENS)
    return tokens if isinstance(tokens, list) else ()


def token_id(metadata: Metadata, key: str, text: str, below: int | None = None) -> int:
    """The id under `key`; where the file does not say, that of the token `text`.

    Raises ModelFormatError for a file with neither, and for an id that is not `below` the rows of the token embedding.
    """
    id_ = metadata.u32(key, None)
    if id_ is None:
        return token_named(metadata, text, below, f"neither a key {metadata.key(key)} nor a")
    if below is not None and id_ >= below:
        raise ModelFormatError(f"{metadata.key(key)} is {id_}, expected an id below {below}")
    return id_


def token_named(metadata: Metadata, text: str, below: int | None = None, missing: str = "no") -> int:
    """The id of the token `text`. Raises ModelFormatError as `token_id`; `missing` is what the file has not."""
    tokens = vocabulary(metadata)
    if text not in tokens[:below]:
        rows = "" if text not in tokens else f" among the {below} that have an embedding"
        raise ModelFormatError(f"the file has {missing} token {text!r}{rows}, which stands where an image is")
    return tokens.index(text)


def newline_runs(metadata: Metadata, longest: int = 31) -> dict[int, int]:
    """Tokens that are newlines and nothing else, {number of newlines: id}; those up to `longest`.

    Empty where the vocabulary has no newline. Tokens that are found in a text before it is split, whose newlines are
    written as they are, come before those of byte-level BPE and before SentencePiece's byte <0x0A>.
    """
    tokens = vocabulary(metadata)
    spellings = [{newline * n: n for n in range(1, longest + 1)} for newline in ("\n", NEWLINE_IN_BYTES)]
    ids: dict[int, int] = {}
    for spelling in [*spellings, {"<0x0A>": 1}]:
        for id_, text in enumerate(tokens):
            if text in spelling:
                ids.setdefault(spelling[text], id_)
    return ids


def split_run(n: int, lengths: Iterable[int]) -> list[int]:
    """A run of `n` newlines as the lengths of its tokens: the longest first, as tokenizers find added tokens."""
    parts: list[int] = []
    for length in sorted(lengths, reverse=True):
        parts += [length] * (n // length)
        n %= length
    return parts
