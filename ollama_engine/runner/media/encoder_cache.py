"""EncoderCache: embeddings of images by content hash, in host memory. Pure bookkeeping.

The engine's thread changes it. The counters are plain numbers that any thread may read.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Container

from ollama_engine.input import FloatArray

__all__ = ["EncoderCache"]


class EncoderCache:
    """Keeps up to `limit` bytes, and drops what was used least recently.

    Embeddings that requests are reading now, and those that came last, stay even where they alone exceed the limit:
    what was encoded can always be used once.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        """Bytes of all embeddings in it."""
        self.hits = 0
        """How often embeddings were wanted, and were there."""
        self._rows: OrderedDict[int, FloatArray] = OrderedDict()

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, key: int) -> bool:
        return key in self._rows

    def get(self, key: int) -> FloatArray | None:
        """The embeddings of an image, float32 [rows, n_embd], or None."""
        rows = self._rows.get(key)
        if rows is not None:
            self._rows.move_to_end(key)
        return rows

    def put(self, key: int, rows: FloatArray, in_use: Container[int] = ()) -> None:
        """Keep the embeddings of an image. Drops others to make room, except those of images in `in_use`."""
        assert key not in self._rows, "an image is encoded once"
        self._rows[key] = rows
        self.nbytes += rows.nbytes
        for old in list(self._rows):
            if self.nbytes <= self.limit:
                return
            if old != key and old not in in_use:
                self.nbytes -= self._rows.pop(old).nbytes
