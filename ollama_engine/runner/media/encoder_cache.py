"""EncoderCache: embeddings of images by content hash, in host memory. Pure bookkeeping; the engine's thread owns it."""

from __future__ import annotations

from collections import OrderedDict
from weakref import WeakValueDictionary

from ollama_engine.input import FloatArray

__all__ = ["EncoderCache"]


class EncoderCache:
    """Keeps up to `limit` bytes, and drops what was used least recently.

    The embeddings that came last stay, even where they alone exceed the limit: what was encoded can be used once. And
    what was dropped is found as long as a sequence that is reading it holds it.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.nbytes = 0
        """Bytes of the embeddings that it keeps. Any thread may read it."""
        self._kept: OrderedDict[int, FloatArray] = OrderedDict()
        self._alive: WeakValueDictionary[int, FloatArray] = WeakValueDictionary()

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, key: int) -> bool:
        return key in self._kept or key in self._alive

    def get(self, key: int) -> FloatArray | None:
        """The embeddings of an image, float32 [rows, row_width]; None where they are gone, or never were."""
        rows = self._kept.get(key)
        if rows is None:
            return self._alive.get(key)
        self._kept.move_to_end(key)
        return rows

    def put(self, key: int, rows: FloatArray) -> None:
        """Keep the embeddings of an image, and drop others to make room."""
        assert key not in self, "an image is encoded once"
        assert rows.base is None, "views of it hold it"
        self._kept[key] = self._alive[key] = rows
        self.nbytes += rows.nbytes
        while self.nbytes > self.limit and len(self._kept) > 1:
            _, dropped = self._kept.popitem(last=False)
            self.nbytes -= dropped.nbytes
