"""Writes and reads the files of blocks, see `block_format`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ollama_engine.kvcache import SavedRows
from ollama_engine.runner.prefix_store.block_format import DIGEST, PREFIX, BlockFormatError, checked, prefix
from ollama_engine.runner.prefix_store.block_writer import write_parts
from ollama_engine.runner.prefix_store.step_budget import StepBudget

__all__ = ["block_bytes", "read_block", "write_block"]


def block_bytes(rows: int, row_bytes: Sequence[int]) -> int:
    """Bytes of a file with so many rows."""
    return PREFIX.size + rows * (4 + sum(row_bytes)) + DIGEST


def write_block(path: Path, key: bytes, kind: int, saved: SavedRows, budget: StepBudget) -> int:
    """Write a file that only this user may read, and return its bytes. Raises OSError; nothing is left then."""
    temporary = path.with_name(f".{os.urandom(8).hex()}.part")
    head = prefix(key, kind, len(saved.positions)) + saved.positions.astype("<i4").tobytes()
    try:
        file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            write_parts(file, [head, *(np.ascontiguousarray(rows).reshape(-1) for rows in saved.rows)], budget)
        finally:
            os.close(file)
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return block_bytes(len(saved.positions), [rows.shape[1] for rows in saved.rows])


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
