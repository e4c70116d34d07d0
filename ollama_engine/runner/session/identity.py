"""ModelIdentity: the fingerprint of the loaded model, for session files."""

from __future__ import annotations

import os
from functools import cached_property

from ollama_engine.ml.gguf.gguf_file import GGUFFile

__all__ = ["ModelIdentity"]


class ModelIdentity:
    """Knows where the model's files are, whatever the working directory becomes."""

    def __init__(self, gguf: GGUFFile) -> None:
        self._gguf = gguf
        self._files = tuple(map(os.path.abspath, gguf.files))

    @cached_property
    def fingerprint(self) -> str:
        """Computed at the first save or load of a session. Raises OSError where a file of the model is gone."""
        from ollama_engine.runner.session.fingerprint import fingerprint  # noqa: PLC0415 (OpenSSL)

        return fingerprint(self._gguf, self._files)
