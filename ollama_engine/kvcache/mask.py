"""The buffer in which masks and KV indices are made; allocated once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import NoMemoryError, Option
from ollama_engine.input import Int32Array
from ollama_engine.kvcache.cells import Cells, fill_range_mask
from ollama_engine.kvcache.span import CellSpan

Float16Array = npt.NDArray[np.float16]


def mask_bytes(n_rows: int, n_cells: int) -> int:
    """Memory for the masks of up to `n_rows` tokens over `n_cells` cells."""
    return n_rows * n_cells * np.dtype(np.float16).itemsize


def index_bytes(n_sequences: int, n_cells: int) -> int:
    """Memory for the indices of up to `n_sequences` sequences that share all of `n_cells` cells."""
    return n_sequences * n_cells * np.dtype(np.int32).itemsize


class MaskBuffer:
    """A buffer for one f16 mask, or the int32 indices of one batch. Grows on `reserve`, or on demand."""

    def __init__(self) -> None:
        self._buffer: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)

    @property
    def nbytes(self) -> int:
        return self._buffer.nbytes

    def reserve(self, n_rows: int, n_cells: int) -> None:
        """Take the memory for masks of up to n_rows * n_cells entries. Raises NoMemoryError."""
        if len(self._buffer) < mask_bytes(n_rows, n_cells):
            what = f"the mask of {n_rows} tokens over {n_cells} cells"
            self._take(mask_bytes(n_rows, n_cells), what, ("batch_size", "num_ctx", "parallel"))

    def reserve_indices(self, n: int) -> None:
        """Take the memory for `n` indices. Raises NoMemoryError."""
        if len(self._buffer) < index_bytes(1, n):
            self._take(index_bytes(1, n), f"a list of {n} cells", ("num_ctx", "parallel"))

    def _take(self, nbytes: int, what: str, lower: tuple[str, ...]) -> None:
        try:
            # Written, so that the system allocates the pages now and not in the middle of an answer.
            self._buffer = np.full(nbytes, 0, dtype=np.uint8)
        except MemoryError:
            raise NoMemoryError(
                f"{what} takes {nbytes >> 20} MiB", advice=[("lower ", Option(name)) for name in lower]
            ) from None

    def fill(
        self, cells: Cells, span: CellSpan, sequences: Int32Array, first: Int32Array, last: Int32Array
    ) -> Float16Array:
        """The mask of these rows over the cells of `span`, [rows, span.n]. The next call overwrites it. See `Cells`."""
        mask = self._mask(len(sequences), span.n)
        cells.fill_mask(span.begin, sequences, first, last, mask)
        return mask

    def _mask(self, n_rows: int, n_columns: int) -> Float16Array:
        self.reserve(n_rows, n_columns)
        return self._buffer[: mask_bytes(n_rows, n_columns)].view(np.float16).reshape(n_rows, n_columns)

    def fill_gathered(
        self, cells: Cells, room: int, sequences: Int32Array, first: Int32Array, last: Int32Array
    ) -> tuple[Int32Array, Float16Array]:
        """The cells of these rows' sequences, [room], and each row's mask over them, [rows, room]; overwritten as well.

        Padding repeats one of those cells: a cell of another sequence might hold NaN, which a mask does not hide.
        """
        ranges = np.empty((len(sequences), 2), dtype=np.int32)
        indices = np.empty(room, dtype=np.int32)
        n = cells.fill_indices(sequences, first, last, ranges, indices)
        indices[n:] = indices[0]
        mask = self._mask(len(sequences), room)
        fill_range_mask(ranges, mask)
        return indices, mask

    def fill_indices(
        self, cells: Cells, room: int, sequences: Int32Array, first: Int32Array, last: Int32Array
    ) -> tuple[Int32Array, Int32Array]:
        """Each row's range of indices, [rows, 2], and the indices, [room], padded with 0; overwritten as well."""
        self.reserve_indices(room)
        ranges = np.empty((len(sequences), 2), dtype=np.int32)
        indices = self._buffer[: index_bytes(1, room)].view(np.int32)
        indices[cells.fill_indices(sequences, first, last, ranges, indices) :] = 0
        return ranges, indices
