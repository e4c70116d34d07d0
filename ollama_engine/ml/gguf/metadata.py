"""Typed reading of GGUF metadata: owns how a stored value becomes the type that the reader asked for.

Converters disagree about types: the same key comes as u32, i32, u64, f32, bool or an array with one entry per layer.
So integers of any width, integral floats and booleans count as integers, and an array whose entries are all equal
counts as their value. Anything else that does not fit raises; a value is never replaced by the default because of its
type.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from ollama_engine.errors import ModelFormatError

__all__ = ["Metadata", "MetadataValue"]

MetadataValue: TypeAlias = str | int | float | bool | NDArray[Any] | list[str]

_T = TypeVar("_T")
_D = TypeVar("_D")
# Inside of Metadata these names are methods.
_Str: TypeAlias = str
_Bool: TypeAlias = bool
_List: TypeAlias = list[_T]
_REQUIRED: Final[Any] = object()
_MOST_U32 = 2**32 - 1


class Metadata:
    """Typed getters over a mapping of GGUF keys.

    Keys that do not start with `general.` or `tokenizer.` are taken below the architecture: `block_count` of a llama
    file reads `llama.block_count`. Each getter returns `default` when the key is absent and raises ModelFormatError
    when there is no default or the stored value is of another kind.

    Args:
        values: the mapping, for instance `GGUFFile.metadata`.
        architecture: what to prefix keys with; `general.architecture` if None.

    Raises:
        ModelFormatError: `architecture` is None and the mapping does not say.
    """

    def __init__(self, values: Mapping[_Str, MetadataValue], architecture: _Str | None = None) -> None:
        self.values = values
        self.architecture = architecture if architecture is not None else _architecture(values)

    def key(self, name: _Str) -> _Str:
        """The full key that `name` stands for."""
        if name.startswith(("general.", "tokenizer.")):
            return name
        return f"{self.architecture}.{name}"

    def __contains__(self, name: object) -> _Bool:
        return isinstance(name, str) and self.key(name) in self.values

    def u32(self, name: _Str, default: _D = _REQUIRED) -> int | _D:
        """An integer from 0 to 2**32 - 1."""
        return self._one(name, default, _unsigned, "an unsigned 32-bit integer")

    def f32(self, name: _Str, default: _D = _REQUIRED) -> float | _D:
        """A finite float; an integer counts, NaN and infinity do not."""
        return self._one(name, default, _number, "a finite number")

    def u32s(self, name: _Str, n: int, default: _D = _REQUIRED) -> _List[int] | _D:
        """`n` integers, one per layer; a stored scalar stands for all of them."""
        return self._many(name, n, default, _unsigned, "unsigned 32-bit integers")

    def f32s(self, name: _Str, n: int, default: _D = _REQUIRED) -> _List[float] | _D:
        """`n` finite numbers; a stored scalar stands for all of them."""
        return self._many(name, n, default, _number, "finite numbers")

    def bools(self, name: _Str, n: int, default: _D = _REQUIRED) -> _List[_Bool] | _D:
        """`n` truth values, one per layer; a stored scalar stands for all of them."""
        return self._many(name, n, default, _truth, "truth values")

    def list(self, name: _Str, default: _D = _REQUIRED) -> _List[Any] | _D:
        """An array of any length as plain Python values: int, float, bool or str."""
        value = self._get(name)
        if value is None:
            return self._absent(name, default, "an array")
        if isinstance(value, np.ndarray):
            return cast("_List[Any]", value.tolist())
        if isinstance(value, list):
            return value
        raise self._wrong(name, value, "an array")

    def bool(self, name: _Str, default: _D = _REQUIRED) -> _Bool | _D:
        """A truth value; 0 and 1 count."""
        return self._one(name, default, _truth, "true or false")

    def str(self, name: _Str, default: _D = _REQUIRED) -> _Str | _D:
        return self._one(name, default, _string, "a string")

    # -- shared by all getters ----------------------------------------------------------------------------------------

    def _get(self, name: _Str) -> MetadataValue | None:
        return self.values.get(self.key(name))

    def _one(self, name: _Str, default: _D, convert: Callable[[Any], _T | None], expected: _Str) -> _T | _D:
        value = self._get(name)
        if value is None:
            return self._absent(name, default, expected)
        found = convert(_uniform(value))
        if found is None:
            raise self._wrong(name, value, expected)
        return found

    def _many(
        self, name: _Str, n: int, default: _D, convert: Callable[[Any], _T | None], expected: _Str
    ) -> _List[_T] | _D:
        value = self._get(name)
        if value is None:
            return self._absent(name, default, f"{n} {expected}")
        stored = value.tolist() if isinstance(value, np.ndarray) else value
        entries = stored if isinstance(stored, list) else [stored] * n
        found = [item for item in map(convert, entries) if item is not None]
        if len(entries) != n or len(found) != n:
            raise self._wrong(name, value, f"{n} {expected}")
        return found

    def _absent(self, name: _Str, default: _D, expected: _Str) -> _D:
        if default is _REQUIRED:
            raise ModelFormatError(
                f"the model's metadata has no key {self.key(name)!r} (expected {expected}); convert the model again"
            )
        return default

    def _wrong(self, name: _Str, value: MetadataValue, expected: _Str) -> ModelFormatError:
        return ModelFormatError(f"metadata key {self.key(name)!r} holds {_shown(value)}, expected {expected}")


def _architecture(values: Mapping[str, MetadataValue]) -> str:
    name = values.get("general.architecture")
    if not isinstance(name, str) or not name:
        fault = "is missing" if name is None else f"holds {_shown(name)}, expected a name"
        raise ModelFormatError(f"metadata key 'general.architecture' {fault}; the file does not say what model it is")
    return name


def _uniform(value: MetadataValue) -> object:
    """The one value of an array with equal entries; everything else unchanged."""
    if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
        return value[0].item()
    return value


def _unsigned(value: object) -> int | None:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return int(value) if isinstance(value, int) and 0 <= value <= _MOST_U32 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


def _truth(value: object) -> bool | None:
    return bool(value) if isinstance(value, int) and value in (0, 1) else None


def _string(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _shown(value: MetadataValue) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.size} {value.dtype} with {np.array2string(value, threshold=8, edgeitems=3)}"
    if isinstance(value, list):
        return f"an array of {len(value)} strings"
    text = repr(value)
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({type(value).__name__})"
