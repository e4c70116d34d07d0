"""Transforms: changes that conversion makes to the numbers of a tensor besides renaming it.

A transform is told apart by what it needs: moving elements around works on bits of any type, arithmetic wants float32.
Shapes are in numpy's order. Those that treat each entry of the first dimension alone let large tensors be streamed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Transform",
    "add",
    "apply_each",
    "every_other",
    "half",
    "multiplied",
    "pair_heads",
    "row_part",
    "rows_from",
    "squeeze",
    "take",
    "transpose",
    "unpair_heads",
]

Shape = tuple[int, ...]
Sizes = Mapping[str, int]


@dataclass(frozen=True)
class Transform:
    """`apply` makes the new array of an old one, `shape` the new shape of an old one; both know the model's sizes."""

    apply: Callable[[NDArray[Any], Sizes], NDArray[Any]]
    shape: Callable[[Shape, Sizes], Shape] = lambda shape, sizes: shape
    arithmetic: bool = False
    """Whether it wants float32."""
    entrywise: bool = True
    """Whether each entry of the first dimension is treated alone."""


def pair_heads(n_head: str) -> Transform:
    """Rows of a rotary projection from halves of a head [first | second] to neighbouring pairs, for each head.

    `n_head` names the size that counts the heads. GGUF's `llama` rotates neighbours, Hugging Face's the two halves.
    """

    def apply(rows: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
        heads = sizes[n_head]
        split = rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:])
        return split.swapaxes(1, 2).reshape(rows.shape)

    return Transform(apply, entrywise=False)


def unpair_heads(n_head: str, n_rot: str) -> Transform:
    """The other way round, for the first `n_rot` rows of each head; the rest stays."""

    def apply(rows: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
        heads = rows.reshape(sizes[n_head], -1, *rows.shape[1:])
        turned, kept = np.split(heads, [sizes[n_rot]], axis=1)
        return np.concatenate([turned[:, 0::2], turned[:, 1::2], kept], axis=1).reshape(rows.shape)

    return Transform(apply, entrywise=False)


def half(which: int, axis: int, *, turned: bool = False) -> Transform:
    """The first (0) or second (1) half of a dimension other than the first; `turned` transposes the last two then."""

    def apply(values: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
        part = np.split(values, 2, axis)[which]
        return part.swapaxes(-1, -2) if turned else part

    def shape(old: Shape, sizes: Sizes) -> Shape:
        shape = tuple(n // 2 if i == axis else n for i, n in enumerate(old))
        return (*shape[:-2], shape[-1], shape[-2]) if turned else shape

    return Transform(apply, shape)


def row_part(which: int, of: int) -> Transform:
    """One of `of` equal parts of the first dimension."""
    return Transform(
        lambda values, sizes: np.split(values, of)[which],
        lambda old, sizes: (old[0] // of, *old[1:]),
        entrywise=False,
    )


def rows_from(first: str) -> Transform:
    """The entries of the first dimension from number `first`, a size, on."""
    return Transform(
        lambda values, sizes: values[sizes[first] :],
        lambda old, sizes: (old[0] - sizes[first], *old[1:]),
        entrywise=False,
    )


def take(which: int, axis: int) -> Transform:
    """One entry of a dimension other than the first, which is gone then."""
    return Transform(
        lambda values, sizes: values.take(which, axis), lambda old, sizes: tuple(np.delete(old, axis).tolist())
    )


def every_other(which: int, axis: int, *, turned: bool = False) -> Transform:
    """The even (0) or odd (1) entries of a dimension other than the first; `turned` transposes the last two then."""

    def apply(values: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
        part = values[(slice(None),) * axis + (slice(which, None, 2),)]
        return part.swapaxes(-1, -2) if turned else part

    def shape(old: Shape, sizes: Sizes) -> Shape:
        shape = tuple(n // 2 if i == axis else n for i, n in enumerate(old))
        return (*shape[:-2], shape[-1], shape[-2]) if turned else shape

    return Transform(apply, shape)


def transpose() -> Transform:
    """The last two of three dimensions, exchanged."""
    return Transform(lambda values, sizes: values.swapaxes(-1, -2), lambda old, sizes: (*old[:-2], old[-1], old[-2]))


def squeeze(axis: int) -> Transform:
    """A dimension of 1, other than the first, removed."""
    return Transform(
        lambda values, sizes: values.squeeze(axis), lambda old, sizes: tuple(np.delete(old, axis).tolist())
    )


def add(number: float) -> Transform:
    """Every number raised by `number`: norms that are stored as differences from 1."""
    return Transform(lambda values, sizes: values + np.float32(number), arithmetic=True)


def multiplied(factors: NDArray[np.float32], then: Transform | None) -> Transform:
    """All numbers times `factors`, of the same shape or one that is broadcast, before the transform `then`."""
    if then is None:
        return Transform(lambda values, sizes: values * factors, arithmetic=True, entrywise=factors.ndim == 0)
    return Transform(
        lambda values, sizes: then.apply(values * factors, sizes), then.shape, arithmetic=True,
        entrywise=then.entrywise and factors.ndim == 0,
    )  # fmt: skip


def apply_each(function: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Transform:
    """A function of single numbers, such as np.tanh."""
    return Transform(lambda values, sizes: function(values), arithmetic=True)
