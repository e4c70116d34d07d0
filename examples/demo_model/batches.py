"""Turns the endless stream of documents into batches of token ids."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from random import Random

import torch
from tokenizers import Tokenizer
from torch import Tensor

from .documents import documents
from .tokens import encode_documents

NOTHING = -100
"""Fills short rows; no loss is counted there."""

DOCUMENTS_AT_A_TIME = 512


def batches(tokenizer: Tokenizer, seed: int, n_ctx: int, size: int, packed: float) -> Iterator[Tensor]:
    """Batches of about `size` tokens: `[rows, positions + 1]` ids, short rows filled up with `NOTHING`.

    The share `packed` of the documents is laid end to end and cut into rows of `n_ctx`, so that late positions are
    learned; each of the others has a row to itself, as at inference, so that nothing but its own past explains a name.
    """
    stream = documents(seed)
    rng = Random(seed)
    while True:
        rows = encode_documents(tokenizer, list(islice(stream, DOCUMENTS_AT_A_TIME)))
        at = round(packed * len(rows))
        groups = [*_grouped(_cut(rows[:at], n_ctx), size), *_grouped(_sorted(rows[at:], n_ctx), size)]
        rng.shuffle(groups)
        for group in groups:
            longest = max(map(len, group))
            yield torch.tensor([row + [NOTHING] * (longest - len(row)) for row in group])


def _cut(rows: list[list[int]], n_ctx: int) -> Iterator[list[int]]:
    """Rows of `n_ctx + 1`, each beginning with the last id of the one before; the rest is left out."""
    ids = [id_ for row in rows for id_ in row]
    return (ids[at : at + n_ctx + 1] for at in range(0, len(ids) - n_ctx, n_ctx))


def _sorted(rows: list[list[int]], n_ctx: int) -> Iterator[list[int]]:
    """Like lengths side by side, so that little is filled up."""
    return iter(sorted((row[: n_ctx + 1] for row in rows), key=len))


def _grouped(rows: Iterator[list[int]], size: int) -> Iterator[list[list[int]]]:
    """Groups of rows that hold about `size` ids once filled up to the longest, the last of the group."""
    group: list[list[int]] = []
    for row in rows:
        if group and (len(row) - 1) * (len(group) + 1) > size:
            yield group
            group = []
        group.append(row)
    if group:
        yield group
