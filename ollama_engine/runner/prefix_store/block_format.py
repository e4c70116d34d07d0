"""One block of one kind of layers in a file.

    8 bytes   magic
    u32       version
    32 bytes  key of the block
    u32, u32  kind of layers; number of rows
    i32 ...   positions of the rows
    bytes     the rows: keys and values of each layer in turn
    8 bytes   XXH64 of all before

Numbers are little-endian. A file is written under another name first, so it is whole or not there; what a crash or a
full disk leaves behind, and what is damaged later, is refused by its length or its checksum.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import EngineError
from ollama_engine.runner.prefix_store.checksum import Checksum

__all__ = ["DIGEST", "PREFIX", "BlockFormatError", "check_block", "checked", "prefix"]

MAGIC = b"\x93oeblk1\n"
VERSION = 2
PREFIX = struct.Struct("<8sI32sII")
DIGEST = 8


class BlockFormatError(EngineError, ValueError):
    """A file is no block, is damaged, or holds another block than its name says."""


def prefix(key: bytes, kind: int, n: int) -> bytes:
    """What a file with `n` rows begins with."""
    return PREFIX.pack(MAGIC, VERSION, key, kind, n)


def checked(path: Path, data: npt.NDArray[np.uint8], key: bytes, kind: int) -> int:
    """The number of rows that the file says it has, once everything else in it is as it must be."""
    if len(data) < PREFIX.size + DIGEST:
        raise BlockFormatError(f"{path}: has {len(data)} bytes, too few for a block")
    magic, version, its_key, its_kind, n = PREFIX.unpack_from(data.data)
    if (magic, version) != (MAGIC, VERSION):
        raise BlockFormatError(f"{path}: is no block of version {VERSION}")
    if (its_key, its_kind) != (key, kind):
        raise BlockFormatError(f"{path}: holds another block than its name says")
    checksum = Checksum()
    checksum.update(data[:-DIGEST])
    if checksum.digest() != data[-DIGEST:].tobytes():
        raise BlockFormatError(f"{path}: is damaged, its checksum does not fit")
    return int(n)


def check_block(path: Path) -> None:
    """Raise OSError or BlockFormatError unless the file is whole and has the name of its block."""
    key, kind = bytes.fromhex(path.parent.name + path.stem), int(path.suffix[1:])
    with open(path, "rb") as file:
        data = np.fromfile(file, dtype=np.uint8)
    checked(path, data, key, kind)
