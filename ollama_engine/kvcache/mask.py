"""The memory in which masks are made, taken once."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ollama_engine.errors import NoMemoryError, Option
from ollama_engine.input import Int32Array
from ollama_engine.kvcache.cells import Cells
from ollama_engine.kvcache.span import Span

Float16Array = npt.NDArray[np.float16]


def mask_bytes(n_rows: int, n_cells: int) -> int:
    """Memory for the masks of up to `n_rows` tokens over `n_cells` cells."""
    return n_rows * n_cells * np.dtype(np.float16).itemsize


class MaskBuffer:
    """Room for one mask, f16. Grows when a larger one is reserved, or made without that."""

    def __init__(self) -> None:
        self._buffer: Float16Array = np.empty(0, dtype=np.float16)

    @property
    def nbytes(self) -> int:
        """Memory taken."""
        return self._buffer.nbytes

    def reserve(self, n_rows: int, n_cells: int) -> None:
        """Take the memory for masks of up to n_rows * n_cells entries. Raises NoMemoryError."""
        if self._buffer.size >= n_rows * n_cells:
            return
        try:
            # Written, so that the system gives the memory now and not in the middle of an answer.
            self._buffer = np.full(n_rows * n_cells, 0, dtype=np.float16)
        except MemoryError:
            raise NoMemoryError(
                f"the mask of {n_rows} tokens over {n_cells} cells takes {mask_bytes(n_rows, n_cells) >> 20} MiB",
                advice=[("lower ", Option(name)) for name in ("batch_size", "num_ctx", "parallel")],
            ) from None

    def fill(
        self, cells: Cells, span: Span, sequences: Int32Array, first: Int32Array, last: Int32Array
    ) -> Float16Array:
        """The mask of these rows over the cells of `span`, [rows, span.n]; overwritten by the next. See `Cells`."""
        self.reserve(len(sequences), span.n)
        mask = self._buffer[: len(sequences) * span.n].reshape(len(sequences), span.n)
        cells.fill_mask(span.begin, sequences, first, last, mask)
        return mask
