"""Writes and reads the files of blocks, see `block_format`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ollama_engine.kvcache import SavedRows
from ollama_engine.runner.prefix_store.block_format import DIGEST, PREFIX, BlockFormatError, checked, prefix
from ollama_engine.runner.prefix_store.checksum import Checksum

__all__ = ["block_bytes", "read_block", "write_block"]

PIECE = 64 << 10
"""Most bytes that are hashed and written at once: some 0.1 ms, in which a step may need the CPU."""


def block_bytes(rows: int, row_bytes: Sequence[int]) -> int:
    """Bytes of a file with so many rows."""
    return PREFIX.size + rows * (4 + sum(row_bytes)) + DIGEST


def write_block(
    path: Path, key: bytes, kind: int, saved: SavedRows, pause: Callable[[], None] = lambda: None
) -> int:  # fmt: skip
    """Write a file that only this user may read, and return its bytes. Raises OSError; nothing is left then.

    `pause` is called after each PIECE bytes.
    """
    temporary = path.with_name(f".{os.urandom(8).hex()}.part")
    checksum, n, unpaused = Checksum(), 0, 0
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as file:
            for piece in _pieces(key, kind, saved):
                checksum.update(piece)
                n += file.write(piece)
                unpaused += len(piece)
                if unpaused >= PIECE:
                    unpaused = 0
                    pause()
            n += file.write(checksum.digest())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return n


def _pieces(key: bytes, kind: int, saved: SavedRows) -> Iterator[bytes | memoryview]:
    yield prefix(key, kind, len(saved.positions))
    yield saved.positions.astype("<i4").tobytes()
    for rows in saved.rows:
        flat = np.ascontiguousarray(rows).reshape(-1)
        for begin in range(0, len(flat), PIECE):
            yield flat[begin : begin + PIECE].data


def read_block(path: Path, key: bytes, kind: int, row_bytes: Sequence[int]) -> SavedRows:
    """The rows of a block. Raises OSError, and BlockFormatError for what is no such block, or damaged."""
    with open(path, "rb") as file:
        data = np.empty(os.fstat(file.fileno()).st_size, dtype=np.uint8)
        if file.readinto(data.data) != len(data):
            raise BlockFormatError(f"{path}: became shorter while it was read")
    n = checked(path, data, key, kind)
    if block_bytes(n, row_bytes) != len(data):
        raise BlockFormatError(f"{path}: has {len(data)} bytes, {n} rows take {block_bytes(n, row_bytes)}")
    at = PREFIX.size
    positions = data[at : at + 4 * n].view("<i4").astype(np.int32)
    at += 4 * n
    parts = []
    for size in row_bytes:
        parts.append(data[at : at + n * size].reshape(n, size))
        at += n * size
    return SavedRows(positions, tuple(parts))
