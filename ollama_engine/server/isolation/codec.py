"""Codec: values of the engine's interface as JSON and back, exactly. No value that arrives becomes code.

JSON's own values stand for themselves; anything else is an object with one key that begins with "$": its type. A class
crosses when it is listed in `registry`, by its fields.
"""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ollama_engine.chat.plain_data import plain_data
from ollama_engine.errors import ConfigError
from ollama_engine.multimodal.source import image_bytes, is_picture
from ollama_engine.sample.params import is_unicode
from ollama_engine.server.isolation.formats import sent_reader
from ollama_engine.server.isolation.registry import class_fields, known_class, known_name

__all__ = ["decode", "encode"]


def encode(value: Any) -> Any:
    """A value as `json.dumps` takes it. Pictures become the bytes of an image file.

    Raises ConfigError for what no other process can have, such as functions and types.
    """
    if value is None or isinstance(value, (str, bool, int, float, np.number)):
        return _encode_plain(value)
    name = known_name(value.__class__)
    if name is not None:
        return _encode_known(name, value)
    if isinstance(value, (list, tuple, frozenset, set, Mapping)):
        return _encode_container(value)
    return _encode_other(value)


def _encode_plain(value: Any) -> Any:
    """JSON's own values, and those that it cannot write."""
    if isinstance(value, str):
        # Two lone surrogates, one after the other, are one character to JSON.
        return value if is_unicode(value) else {"$text": _base64(value.encode("utf-32-le", "surrogatepass"))}
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, (int, np.integer)):
        return int(value)
    return float(value) if math.isfinite(value) else {"$float": str(float(value))}


def _encode_known(name: str, value: Any) -> dict[str, Any]:
    """An object of a listed class: its fields, without those that have their default."""
    sent: dict[str, Any] = {"$": name}
    made_by: Any = type(value)
    for field, default in class_fields(made_by).items():
        if (found := getattr(value, field)) is not default:
            sent[field] = encode(sent_reader(found) if field == "reader" else found)
    return sent


def _encode_container(value: Any) -> Any:
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [encode(item) for item in value]}
    if isinstance(value, (frozenset, set)):
        return {"$set": [encode(item) for item in value]}
    if all(isinstance(key, str) and not key.startswith("$") and is_unicode(key) for key in value):
        return {key: encode(item) for key, item in value.items()}
    return {"$dict": [[encode(key), encode(item)] for key, item in value.items()]}


def _encode_other(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"$bytes": _base64(value)}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return {"$array": [value.dtype.str, list(value.shape), _base64(np.ascontiguousarray(value).tobytes())]}
    if is_picture(value):
        return encode(image_bytes(value))
    if hasattr(value, "model_dump") or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return encode(
            plain_data(value, "a value for the model's process", lambda found: known_name(type(found)) is not None)
        )
    raise ConfigError(
        f"{type(value).__name__} cannot be given to a model in a process of its own: {value!r:.60}",
        advice=["load the model in this process (isolation none)"],
    )


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def decode(sent: Any) -> Any:
    """The value that `encode` was given. Raises ValueError for what it never makes."""
    if isinstance(sent, list):
        return [decode(item) for item in sent]
    if not isinstance(sent, dict):
        return sent
    mark = next(iter(sent), "")
    if mark == "$":
        return _decode_known(sent)
    if not mark.startswith("$"):
        return {key: decode(item) for key, item in sent.items()}
    if len(sent) != 1 or mark not in _READERS:
        raise ValueError(f"{mark!r:.40} is no type of this protocol")
    return _READERS[mark](sent[mark])


def _decode_known(sent: dict[str, Any]) -> Any:
    cls = known_class(sent["$"])
    return cls(**{name: decode(item) for name, item in sent.items() if name != "$"})


def _array(sent: Any) -> Any:
    dtype, shape, data = sent
    return np.frombuffer(base64.b64decode(data), dtype=np.dtype(dtype)).reshape(shape).copy()


_READERS: Mapping[str, Any] = {
    "$float": float,
    "$bytes": base64.b64decode,
    "$text": lambda data: base64.b64decode(data).decode("utf-32-le", "surrogatepass"),
    "$tuple": lambda items: tuple(map(decode, items)),
    "$set": lambda items: frozenset(map(decode, items)),
    "$dict": lambda pairs: {decode(key): decode(item) for key, item in pairs},
    "$array": _array,
}
