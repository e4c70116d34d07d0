"""The bytes of a text, where a lone surrogate may stand for one that is no UTF-8."""

from __future__ import annotations

from ollama_engine.errors import TokenizerError
from ollama_engine.tokenizer.checkpoint import AT_ONCE

__all__ = ["to_bytes"]


def to_bytes(text: str) -> bytes:
    """The text in UTF-8, piece by piece, so that other threads run meanwhile. Raises TokenizerError."""
    if not isinstance(text, str):
        raise TokenizerError(f"expected str or bytes, got {type(text).__name__}")
    if len(text) <= AT_ONCE:
        return _piece(text, 0, len(text))
    return b"".join([_piece(text, begin, begin + AT_ONCE) for begin in range(0, len(text), AT_ONCE)])


def _piece(text: str, begin: int, end: int) -> bytes:
    try:
        return str.__getitem__(text, slice(begin, end)).encode("utf-8", "surrogateescape")
    except UnicodeEncodeError as error:
        at = begin + error.start
        raise TokenizerError(
            f"character {at} of the text is the lone surrogate U+{ord(text[at]):04X}; "
            "send the whole character, or raw bytes"
        ) from error
