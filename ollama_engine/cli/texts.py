"""Decodes texts from arguments, standard input and files: UTF-8, or an error that names the first invalid byte.

Python passes invalid bytes of an argument as lone surrogates. They are refused: no model was trained on the tokens
that a tokenizer would make of them.
"""

from __future__ import annotations

from ollama_engine.cli.errors import InputError, UsageError

__all__ = ["argument", "decoded"]


def decoded(data: bytes, what: str) -> str:
    """Decode UTF-8. Raises InputError, in which `what` names the source."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(f"{what}: {_place(data, error)}") from None


def argument(text: str, what: str) -> str:
    """An argument as UTF-8 has it, also in a locale without characters. Raises UsageError for bytes that are not UTF-8;
    `what` names the argument.
    """
    data = text.encode("utf-8", "surrogateescape")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{what}: {_place(data, error)}") from None


def _place(data: bytes, error: UnicodeDecodeError) -> str:
    line = data.count(b"\n", 0, error.start) + 1
    at = f"byte {error.start + 1}" if line == 1 else f"byte {error.start + 1}, in line {line},"
    return f"{at} (0x{data[error.start]:02x}) is not UTF-8; convert the text, for instance with iconv"
