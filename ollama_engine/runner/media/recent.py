"""Recent: what was put in last, within a limit. For all threads."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["Recent"]

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by key; the least recently used go first where their sizes exceed `limit`. The last one always stays."""

    def __init__(self, limit: int, size: Callable[[Value], int] = lambda value: 1) -> None:
        self._limit = limit
        self._size = size
        self._held = 0
        self._values: OrderedDict[int, Value] = OrderedDict()
        # Reentrant: a signal handler may call a method while another one runs in this thread.
        self._lock = threading.RLock()

    def get(self, key: int) -> Value | None:
        """The value, or None."""
        with self._lock:
            if key in self._values:
                self._values.move_to_end(key)
            return self._values.get(key)

    def put(self, key: int, value: Value) -> None:
        """Keep a value, in place of an older one of this key."""
        with self._lock:
            self.take(key)
            self._values[key] = value
            self._held += self._size(value)
            while self._held > self._limit and len(self._values) > 1:
                self.take(next(iter(self._values)))

    def take(self, key: int) -> Value | None:
        """Remove a value and return it; None where there is none."""
        with self._lock:
            value = self._values.pop(key, None)
            if value is not None:
                self._held -= self._size(value)
            return value
