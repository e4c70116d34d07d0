"""Texts that callers type, pipe in or keep in files: UTF-8, or an error that says which byte is not.

Python hands over the bytes of an argument that are not UTF-8 as lone surrogates; no model was trained on what
a tokenizer would make of those.
"""

from __future__ import annotations

from ollama_engine.cli.errors import InputError, UsageError

__all__ = ["argument", "decoded"]


def decoded(data: bytes, what: str) -> str:
    """The text of bytes. Raises InputError; `what` names them."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what}: {_told(data, error)}") from None


def argument(text: str, what: str) -> str:
    """An argument as it is. Raises UsageError for one that was not UTF-8; `what` names it."""
    data = text.encode("utf-8", "surrogateescape")
    try:
        data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what}: {_told(data, error)}") from None
    return text


def _told(data: bytes, error: UnicodeDecodeError) -> str:
    line = data.count(b"\n", 0, error.start) + 1
    at = f"byte {error.start + 1}" if line == 1 else f"byte {error.start + 1}, in line {line},"
    return f"{at} (0x{data[error.start]:02x}) is not UTF-8; convert the text, for instance with iconv"
