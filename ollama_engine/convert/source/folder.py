"""Reads the small files of a model's folder, and gives typed values out of its config.json."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ollama_engine.errors import ModelFormatError

__all__ = ["Config", "ModelFolder", "read_config"]

_REQUIRED: Any = object()

SOURCE = "SRC is the folder of a model as Hugging Face publishes it"

NESTED = ("text_config", "language_config", "transformer_layer_config")
"""Names of a nested config of the text part; the second is DeepSeek's, the last that of `speculators`."""


class ModelFolder:
    """A folder as Hugging Face publishes models. Files that it may lack are read as None.

    Raises FileNotFoundError or NotADirectoryError when there is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.is_file():
            raise NotADirectoryError(errno.ENOTDIR, f"is a file; {SOURCE}", str(path))
        os.listdir(self.path)

    def text(self, name: str) -> str | None:
        """A file as text. Raises ModelFormatError when it is not UTF-8."""
        file = self.path / name
        if not file.is_file():
            return None
        try:
            return file.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ModelFormatError(f"{file}: expected UTF-8 text ({error}); download the file again") from None

    def json(self, name: str) -> dict[str, Any] | None:
        """A file as a JSON object. Raises ModelFormatError when it is none."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = json.loads(text)
        except ValueError as error:
            raise ModelFormatError(f"{self.path / name}: not JSON ({error}); download the file again") from None
        if not isinstance(value, dict):
            raise ModelFormatError(f"{self.path / name}: expected a JSON object, got a {type(value).__name__}")
        return value

    def bytes(self, name: str) -> bytes | None:
        """A file as it is."""
        file = self.path / name
        return file.read_bytes() if file.is_file() else None


class Config:
    """The values of a config.json under any of their names; null counts as absent."""

    def __init__(self, values: Mapping[str, Any], home: str, outer: Mapping[str, Any] | None = None) -> None:
        self.values = values
        self.home = home
        self.outer = values if outer is None else outer
        """The values as the file has them, where those of its `text_config` hide others."""

    def completed(self, defaults: Mapping[str, Any]) -> Config:
        """With `defaults` for what is absent."""
        present = {name: value for name, value in self.values.items() if value is not None}
        return Config({**defaults, **present}, self.home, self.outer)

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of `names` that is there."""
        for name in names:
            if self.values.get(name) is not None:
                return self.values[name]
        if default is _REQUIRED:
            raise ModelFormatError(f"{self.home} has no {' or '.join(names)}; is it the config of this model?")
        return default

    def whole(self, *names: str, default: Any = _REQUIRED) -> int:
        """A whole number of 0 or more. Raises ModelFormatError when it is absent without a default, or none."""
        value = self.get(*names, default=default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if value is not default and (type(value) is not int or value < 0):
            raise self.wrong(names, "a whole number", value)
        return value  # type: ignore[no-any-return]

    def number(self, *names: str, default: Any = _REQUIRED) -> float:
        """A number. Raises ModelFormatError as `whole` does."""
        value = self.get(*names, default=default)
        if value is not default and type(value) not in (int, float):
            raise self.wrong(names, "a number", value)
        return value  # type: ignore[no-any-return]

    def mapping(self, *names: str) -> Mapping[str, Any]:
        """An object; empty when absent."""
        value = self.get(*names, default={})
        if not isinstance(value, Mapping):
            raise self.wrong(names, "an object", value)
        return value

    def part(self, name: str, defaults: Mapping[str, Any]) -> Config:
        """The config inside of this one that `name` holds, with `defaults` for what it leaves out.

        Raises ModelFormatError when it is absent or no object.
        """
        if not self.mapping(name):
            raise ModelFormatError(f"{self.home} has no {name}; is it the config of this model?")
        return Config(self.mapping(name), f"{self.home}: {name}").completed(defaults)

    def wrong(self, names: Sequence[str], expected: str, value: Any) -> ModelFormatError:
        """The error for a value of another kind than expected."""
        return ModelFormatError(f"{self.home}: {' or '.join(names)} is {value!r:.80}, expected {expected}")


def read_config(folder: ModelFolder) -> Config:
    """config.json, with the values of a nested config of the text part, as NESTED names it, on top of the outer ones.

    Raises FileNotFoundError when it is missing, ModelFormatError when it is broken.
    """
    home = str(folder.path / "config.json")
    values = folder.json("config.json")
    if values is None:
        raise FileNotFoundError(errno.ENOENT, f"no such file; {SOURCE}", home)
    whole, name = values, next((name for name in NESTED if name in values), "")
    nested = values.get(name)
    if isinstance(nested, dict):
        outer = {k: v for k, v in values.items() if k != name}
        values = {**outer, **nested, "architectures": outer.get("architectures") or nested.get("architectures")}
    return Config(values, home, whole)
