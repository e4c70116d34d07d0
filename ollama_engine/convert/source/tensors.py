"""Owns what a tensor of a checkpoint is, whatever file it lies in."""

from __future__ import annotations

from math import prod
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["StoredTensor", "describe", "rows_of"]


class StoredTensor(Protocol):
    """A tensor that has not been read yet.

    `shape` is in numpy's order. `dtype` is a name of `elements.STORAGE`.
    """

    @property
    def name(self) -> str: ...

    @property
    def dtype(self) -> str: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def home(self) -> str:
        """The path of its file, for messages."""

    def read(self, start: int = 0, stop: int | None = None) -> NDArray[np.generic]:
        """Entries `start` to `stop` of the first dimension, as an array of their own.

        Raises OSError when the file cannot be read, ModelFormatError when it has become shorter.
        """


def rows_of(shape: tuple[int, ...]) -> tuple[int, int]:
    """(entries of the first dimension, elements of each); a scalar is one of one."""
    return (shape[0], prod(shape[1:])) if shape else (1, 1)


def describe(tensor: StoredTensor) -> str:
    """`name float shape`, for messages."""
    return f"{tensor.name} {tensor.dtype} {list(tensor.shape)}"
