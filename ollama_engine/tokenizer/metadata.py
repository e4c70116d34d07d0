"""Reads typed values out of GGUF metadata.

Converters disagree about types: one key has several integer widths, and an array may be a list or a numpy array. Here
every form becomes one Python type. A value that does not fit raises a ModelFormatError that names the key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.errors import ModelFormatError
from ollama_engine.tokenizer._texts import only_texts

__all__ = ["Fields"]

logger = logging.getLogger(__name__)


class Fields:
    """The `tokenizer.ggml.*` keys of a file; short names here lack that prefix."""

    prefix = "tokenizer.ggml."

    def __init__(self, metadata: Mapping[str, Any]) -> None:
        self.metadata = metadata

    def __contains__(self, name: str) -> bool:
        return self.prefix + name in self.metadata

    def get(self, name: str) -> Any:
        return self.metadata.get(self.prefix + name)

    def wrong(self, name: str, expected: str) -> ModelFormatError:
        got = self.get(name)
        return ModelFormatError(f"{self.prefix}{name}: expected {expected}, got {type(got).__name__} {str(got)[:60]!r}")

    def text(self, name: str, default: str = "") -> str:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, str):
            raise self.wrong(name, "a string")
        return value

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name)
        if value is None:
            return default
        if not isinstance(value, (bool, int, np.bool_, np.integer)):
            raise self.wrong(name, "a bool")
        return bool(value)

    def number(self, name: str) -> int:
        """A whole number; 0 when absent."""
        value = self.get(name)
        if value is None:
            return 0
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 0:
            raise self.wrong(name, "a whole number")
        return int(value)

    def texts(self, name: str) -> list[str]:
        """A string array; [] when absent."""
        value = self.get(name)
        if value is None:
            return []
        if isinstance(value, np.ndarray) and value.size == 0:
            return []
        found = list(value) if isinstance(value, (list, tuple)) else None
        if found is None or not only_texts(found):
            raise self.wrong(name, "an array of strings")
        return found

    def raw(self, name: str) -> bytes:
        """An array of bytes, signed or not; b"" when absent."""
        value = self.get(name)
        if value is None:
            return b""
        array = np.asarray(value)
        if (
            array.ndim != 1
            or array.dtype.kind not in "iu"
            or (array.size and not -128 <= array.min() <= array.max() < 256)
        ):
            raise self.wrong(name, "an array of bytes")
        return (array.astype(np.int64) & 255).astype(np.uint8).tobytes()

    def numbers(self, name: str, count: int, dtype: type[np.generic]) -> NDArray[Any] | None:
        """A number array with at least `count` entries, cut to `count`; None when absent."""
        value = self.get(name)
        if value is None:
            return None
        array = np.asarray(value)
        if array.ndim != 1 or array.dtype.kind not in "iuf":
            raise self.wrong(name, "an array of numbers")
        if len(array) < count:
            raise ModelFormatError(f"{self.prefix}{name} has {len(array)} entries for {count} tokens")
        return array[:count].astype(dtype)

    def token_ids(self, name: str, n_vocab: int) -> list[int]:
        """The ids under `name`, a number or an array of them.

        An id outside of the vocabulary is logged and left out: converters write -1 or 2**32 - 1 for "none".
        """
        value = self.get(name)
        if value is None:
            return []
        array = np.atleast_1d(np.asarray(value))
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise self.wrong(name, "a token id")
        good = [int(i) for i in array if 0 <= i < n_vocab]
        if len(good) < array.size:
            logger.warning("%s%s = %s is outside of the %d tokens and is ignored", self.prefix, name, value, n_vocab)
        return good

    def token_id(self, name: str, n_vocab: int) -> int | None:
        ids = self.token_ids(name, n_vocab)
        return ids[0] if ids else None
