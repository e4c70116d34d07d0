"""ModelIdentity: which model an engine has loaded, as session files say it."""

from __future__ import annotations

import os
from functools import cached_property

from ollama_engine.ml.gguf import GGUFFile

__all__ = ["ModelIdentity"]


class ModelIdentity:
    """Knows where the model's files are, whatever the working directory becomes."""

    def __init__(self, gguf: GGUFFile) -> None:
        self._gguf = gguf
        self._files = tuple(map(os.path.abspath, gguf.files))

    @cached_property
    def fingerprint(self) -> str:
        """Taken once, when the first session is saved or loaded. Raises OSError where a file of the model is gone."""
        from ollama_engine.runner.session.fingerprint import fingerprint  # noqa: PLC0415 (OpenSSL)

        return fingerprint(self._gguf, self._files)
