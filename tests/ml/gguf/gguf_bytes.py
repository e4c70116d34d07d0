"""GGUF files put together byte by byte, so that any field can be wrong."""

from __future__ import annotations

import struct
from typing import NamedTuple

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}
SIZES = {kind: struct.calcsize(form) for kind, form in _FORMATS.items()}
"""Bytes of a value, for the kinds whose values all have as many."""


def string(text: str | bytes) -> bytes:
    data = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(data)) + data


def scalar(kind: int, value: object) -> bytes:
    return string(value) if isinstance(value, str | bytes) else struct.pack("<" + _FORMATS[kind], value)


def kv(key: str | bytes, kind: int, value: object) -> bytes:
    return string(key) + struct.pack("<I", kind) + scalar(kind, value)


def array(key: str | bytes, kind: int, values: list[object], count: int | None = None) -> bytes:
    head = struct.pack("<IIQ", ARRAY, kind, len(values) if count is None else count)
    return string(key) + head + b"".join(scalar(kind, value) for value in values)


def tensor(name: str | bytes, dims: list[int], kind: int = 0, offset: int = 0, n_dims: int | None = None) -> bytes:
    head = struct.pack("<I", len(dims) if n_dims is None else n_dims)
    shape = b"".join(struct.pack("<Q", d & (2**64 - 1)) for d in dims)
    return string(name) + head + shape + struct.pack("<IQ", kind, offset)


class File(NamedTuple):
    """The parts of a file; `bytes()` puts them together with counts that fit unless they are given."""

    kvs: list[bytes] = []  # noqa: RUF012, a NamedTuple's default is never changed here
    tensors: list[bytes] = []  # noqa: RUF012
    data: bytes = b""
    magic: bytes = b"GGUF"
    version: int = 3
    n_kv: int | None = None
    n_tensors: int | None = None
    alignment: int = 32

    def bytes(self) -> bytes:
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_kv = len(self.kvs) if self.n_kv is None else self.n_kv
        head = self.magic + struct.pack("<IQQ", self.version, n_tensors, n_kv)
        head += b"".join(self.kvs) + b"".join(self.tensors)
        return head + (b"\0" * (-len(head) % self.alignment) + self.data if self.data else b"")


ARCHITECTURE = kv("general.architecture", STRING, "llama")
