"""Goldens: what transformers computed for each case, small enough to be committed, checked without torch."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tests.models.cases import Case
from tests.support.tiny import Weights

FOLDER = Path(__file__).parent / "goldens"
N_ROWS = 4


class Golden(NamedTuple):
    """`rows` of the prompt's logits [len(rows), n_vocab], and the greedy tokens (none for inexact cases)."""

    checksum: str
    rows: NDArray[np.int64]
    logits: NDArray[np.float32]
    tokens: NDArray[np.int64]


def checksum(weights: Weights) -> str:
    """A checksum of the random numbers; rope factors are computed, and may differ in the last bit."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        if name != "rope_freqs.weight":
            digest.update(name.encode())
            digest.update(np.ascontiguousarray(weights[name], dtype="<f4").tobytes())
    return digest.hexdigest()


def rows_of(case: Case) -> NDArray[np.int64]:
    """Evenly spread, the first and the last included."""
    return np.linspace(0, case.prompt_length - 1, N_ROWS).astype(np.int64)


def save(case: Case, golden: Golden) -> Path:
    FOLDER.mkdir(exist_ok=True)
    path = FOLDER / f"{case.name}.npz"
    np.savez_compressed(path, **{**golden._asdict(), "tokens": golden.tokens.astype(np.int16)})
    return path


def load(case: Case) -> Golden:
    with np.load(FOLDER / f"{case.name}.npz") as data:
        return Golden(str(data["checksum"]), data["rows"], data["logits"], data["tokens"].astype(np.int64))
