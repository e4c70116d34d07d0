"""Paths of model files, as callers pass them."""

from __future__ import annotations

import os

from ollama_engine.errors import ConfigError

__all__ = ["model_path"]


def model_path(given: object, what: str = "a model") -> str:
    """The path as a str. Raises ConfigError for what is no path, and for a name that no file can have."""
    if not isinstance(given, (str, bytes, os.PathLike)):
        raise ConfigError(f"{what} is the path of a GGUF file, got {type(given).__name__}: {given!r:.80}")
    path = os.fsdecode(given)
    try:
        no_file = b"\0" in os.fsencode(path)
    except UnicodeEncodeError:
        no_file = True
    if no_file:
        raise ConfigError(f"{what} is the path of a GGUF file, and no file has the name {path!r:.80}")
    return path
