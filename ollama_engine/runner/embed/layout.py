"""Lays texts out in one batch: the rows of each text, and those that its pooling reads. Numbers only.

Attention is cheaper where it computes the parts of a batch separately, which needs parts of equal size that do not see
each other (`kvcache.null`). So short texts are packed into such parts, where that leaves few rows empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ollama_engine.config import Pooling
from ollama_engine.input import Batch, BatchMedia, Int32Array
from ollama_engine.kvcache.null import PARTS
from ollama_engine.runner.embed.pooling import rows_of
from ollama_engine.runner.embed.tokenized_text import TokenizedText

__all__ = ["TextLayout", "batch_of", "places"]

SPARE = 16
"""At most one row in this many may be padding: more padding costs more than the parts save in attention."""


class TextLayout(NamedTuple):
    """The rows of each text in a batch."""

    order: list[int]
    """Numbers of the texts, in the order of their rows."""
    begins: list[int]
    """The first row of each text, in the same order."""
    n_rows: int
    part: int
    """Rows of a part; `n_rows` for a single part."""


def places(lengths: Sequence[int], limit: int, *, parts: bool = True) -> TextLayout:
    """A layout of up to `limit` rows: in parts of one size if that leaves few rows empty, else one after the other.

    Without `parts`, one after the other.
    """
    total = sum(lengths)
    for size in PARTS if parts else ():
        if max(lengths) <= size < total:
            found = _in_parts(lengths, size)
            if found.n_rows <= min(limit, total + total // SPARE):
                return found
    begins = np.cumsum([0, *lengths[:-1]]).tolist()
    return TextLayout(list(range(len(lengths))), begins, total, total)


def _in_parts(lengths: Sequence[int], size: int) -> TextLayout:
    """Pack texts into parts of `size` rows: first fit, longest texts first."""
    used: list[int] = []
    begins = {}
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        part = next((i for i, n in enumerate(used) if n + lengths[number] <= size), len(used))
        if part == len(used):
            used.append(0)
        begins[number] = part * size + used[part]
        used[part] += lengths[number]
    order = sorted(begins, key=lambda number: begins[number])
    return TextLayout(order, [begins[number] for number in order], size * len(used), size)


def batch_of(texts: Sequence[TokenizedText], poolings: Sequence[Pooling], where: TextLayout, n_axes: int = 1) -> Batch:
    """The batch. Its outputs are the rows that the poolings read, in the order of rows. `n_axes`: of positions.

    Padding rows belong to one dummy sequence per part, so that parts do not see each other.
    """
    n = where.n_rows
    tokens, positions, types = (np.zeros(n, dtype=np.int32) for _ in range(3))
    sequences = (len(texts) + np.arange(n) // where.part).astype(np.int32)
    axes = np.zeros((n_axes, n), dtype=np.int32)
    outputs: list[Int32Array] = []
    media: list[BatchMedia] = []
    for number, begin in zip(where.order, where.begins, strict=True):
        text = texts[number]
        end = begin + len(text.tokens)
        tokens[begin:end] = text.tokens
        positions[begin:end] = np.arange(end - begin)
        sequences[begin:end] = number
        axes[:, begin:end] = positions[begin:end]
        if text.inputs is not None:
            axes[:, begin:end] = text.inputs.axis_positions(0, end - begin, n_axes)
            media += [BatchMedia(begin + s.begin, s.end - s.begin, s.item, s.offset) for s in text.inputs.media]
        types[begin:end] = text.adapter
        if text.second is not None:
            types[begin + text.second : end] = 1
        first, last = rows_of(end - begin, poolings[number])
        outputs.append(np.arange(begin + first, begin + last, dtype=np.int32))
    typed = any(text.second is not None or text.adapter for text in texts)
    return Batch(
        tokens, positions, sequences, np.concatenate(outputs), types=types if typed else None, media=tuple(media),
        axes=axes if n_axes > 1 else None,
    )  # fmt: skip
