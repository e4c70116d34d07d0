"""Fingerprint: identifies the model with which keys and values were computed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence

import numpy as np

from ollama_engine.ml.gguf.gguf_file import GGUFFile, TensorInfo
from ollama_engine.ml.gguf.metadata import MetadataValue

__all__ = ["fingerprint"]

_SAMPLE = 256
"""Bytes read at the beginning, in the middle and at the end of every tensor."""
_WITHOUT = ("tokenizer.chat_template",)
"""Changes no token's keys and values."""


def fingerprint(gguf: GGUFFile, files: Sequence[str]) -> str:
    """SHA-256 over a model's architecture, sizes, vocabulary, tensor names, shapes and types, and samples of weights.

    Models that differ only in a few weights between the samples have the same fingerprint; fine-tuning changes all.
    The name and licence of a model do not count. `files` are where its files are now. Raises OSError where one is gone.
    """
    digest = hashlib.sha256()
    kinds = ("general.architecture", "tokenizer.", "clip.", f"{gguf.architecture}.")
    for key in sorted(gguf.metadata):
        if key.startswith(kinds) and not key.startswith(_WITHOUT):
            _add(digest, key.encode("utf-8", "surrogateescape"), _bytes_of(gguf.metadata[key]))
    for number, path in enumerate(files):
        with open(path, "rb") as file:
            mine = [info for info in gguf.tensors.values() if info.file == number]
            for info in sorted(mine):
                text = f"{info.name} {info.dtype} {info.shape}".encode("utf-8", "surrogateescape")
                _add(digest, text, _sample(file.fileno(), info))
    return digest.hexdigest()


def _sample(fd: int, info: TensorInfo) -> bytes:
    places = (0, info.nbytes // 2, max(0, info.nbytes - _SAMPLE))
    return b"".join(os.pread(fd, min(_SAMPLE, info.nbytes - at), info.offset + at) for at in places)


def _bytes_of(value: MetadataValue) -> bytes:
    if isinstance(value, np.ndarray):
        return value.dtype.str.encode() + value.tobytes()
    parts = value if isinstance(value, list) else [value]
    return b"".join(_framed(str(part).encode("utf-8", "surrogateescape")) for part in parts)


def _add(digest: hashlib._Hash, *parts: bytes) -> None:
    for part in parts:
        digest.update(_framed(part))


def _framed(part: bytes) -> bytes:
    # With lengths, so that no two lists of parts give the same bytes.
    return len(part).to_bytes(8, "little") + part
