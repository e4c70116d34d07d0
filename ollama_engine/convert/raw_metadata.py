"""Copies the metadata of a GGUF file byte by byte, so that every value keeps its type, and replaces single keys.

The header was checked when `ml.gguf.GGUFFile` opened it; here it is only walked over.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import BinaryIO

from ollama_engine.convert.gguf_writing import EncodedMetadata

__all__ = ["copy_metadata", "keys_below"]

# GGUF's value types; by size where all values have the same.
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
UINT32, STRING, ARRAY = 4, 8, 9


def copy_metadata(path: str, replaced: Mapping[str, int | str], removed: Iterable[str] = ()) -> EncodedMetadata:
    """The keys of a file without `removed`; those in `replaced` come last, whole numbers as u32."""
    entries = _entries(path)
    for key in (*removed, *replaced):
        entries.pop(key.encode(), None)
    added = [_string(key) + _value(value) for key, value in replaced.items()]
    return EncodedMetadata(len(entries) + len(added), b"".join((*entries.values(), *added)))


def keys_below(path: str, begin: str) -> EncodedMetadata:
    """The keys of a file whose names begin so."""
    entries = [entry for key, entry in _entries(path).items() if key.startswith(begin.encode())]
    return EncodedMetadata(len(entries), b"".join(entries))


def _value(value: int | str) -> bytes:
    if isinstance(value, str):
        return struct.pack("<I", STRING) + _string(value)
    return struct.pack("<II", UINT32, value)


def _string(text: str) -> bytes:
    data = text.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(data)) + data


def _entries(path: str) -> dict[bytes, bytes]:
    """Key -> the bytes of key, type and value."""
    with open(path, "rb") as file:
        data = file.read(24)
        (count,) = struct.unpack_from("<Q", data, 16)
        entries = {}
        for _ in range(count):
            start = file.tell()
            key = file.read(int.from_bytes(file.read(8), "little"))
            kind = int.from_bytes(file.read(4), "little")
            _skip(file, kind)
            end = file.tell()
            file.seek(start)
            entries[key] = file.read(end - start)
    return entries


def _skip(file: BinaryIO, kind: int) -> None:
    if kind == STRING:
        file.seek(int.from_bytes(file.read(8), "little"), 1)
    elif kind == ARRAY:
        of, n = struct.unpack("<IQ", file.read(12))
        if of in SIZES:
            file.seek(n * SIZES[of], 1)
        else:
            for _ in range(n):
                _skip(file, of)
    else:
        file.seek(SIZES[kind], 1)
