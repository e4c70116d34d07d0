"""Writes GGUF files front to back: the header, then tensors as they come, each at its place.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Metadata come as bytes that are already encoded: a
converter has the gguf package encode them, a quantizer copies those of its source as they are.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ollama_engine.ml.graph.types import block_of, type_id

__all__ = ["EncodedMetadata", "OutTensor", "Progress", "data_size", "write_header", "write_model"]

ALIGNMENT = 32
"""Tensors start at multiples of this many bytes; GGUF's default, for which no metadata key is needed."""

Progress = Callable[[int, int], None]
"""Called with (bytes written, bytes in all)."""


class _ByteCounter:
    """Adds up what was written and tells `progress`."""

    def __init__(self, total: int, progress: Progress | None) -> None:
        self._total = total
        self._done = 0
        self._progress = progress

    def add(self, n: int) -> None:
        """Count `n` more bytes as written, and report the progress."""
        self._done += n
        if self._progress is not None:
            self._progress(self._done, self._total)


@dataclass(frozen=True)
class EncodedMetadata:
    """`count` keys with their values, one after the other, in the bytes of the format."""

    count: int
    data: bytes

    def __add__(self, other: EncodedMetadata) -> EncodedMetadata:
        return EncodedMetadata(self.count + other.count, self.data + other.data)


@dataclass(frozen=True)
class OutTensor:
    """A tensor as the header announces it; `shape` is in ggml's order, fastest dimension first."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def n_bytes(self) -> int:
        block, size = block_of(self.dtype)
        return prod(self.shape) // block * size


def data_size(tensors: Iterable[OutTensor]) -> int:
    """Bytes of all tensors, with what lies between them."""
    return sum(_padded(tensor.n_bytes) for tensor in tensors)


def write_header(file: BinaryIO, metadata: EncodedMetadata, tensors: Sequence[OutTensor]) -> None:
    """Everything before the data of the first tensor."""
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), metadata.count), metadata.data]
    offset = 0
    for tensor in tensors:
        name = tensor.name.encode("utf-8", "surrogateescape")
        parts += [struct.pack("<Q", len(name)), name, struct.pack("<I", len(tensor.shape))]
        parts.append(struct.pack(f"<{len(tensor.shape)}Q", *tensor.shape))
        parts.append(struct.pack("<IQ", type_id(tensor.dtype), offset))
        offset += _padded(tensor.n_bytes)
    header = b"".join(parts)
    file.write(header.ljust(_padded(len(header)), b"\0"))


def write_model(
    file: BinaryIO,
    metadata: EncodedMetadata,
    tensors: Sequence[OutTensor],
    pieces: Iterator[NDArray[np.uint8]],
    progress: Progress | None,
) -> None:
    """The header, then the data of all tensors, which come in pieces that belong to one tensor each.

    Raises ValueError when the pieces are not the tensors: a programming error of the caller, found before it can shift
    everything behind it.
    """
    write_header(file, metadata, tensors)
    counter = _ByteCounter(sum(tensor.n_bytes for tensor in tensors), progress)
    for tensor in tensors:
        total = 0
        while total < tensor.n_bytes:
            piece = next(pieces, None)
            if piece is None:
                break
            file.write(piece.data)
            total += piece.nbytes
            counter.add(piece.nbytes)
        if total != tensor.n_bytes:
            raise ValueError(f"tensor {tensor.name} takes {tensor.n_bytes} bytes, got {total}")
        file.write(bytes(_padded(total) - total))
    if next(pieces, None) is not None:
        raise ValueError("there are more pieces than the tensors take")


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
