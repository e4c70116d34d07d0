"""The common part of goldens of checkpoints as transformers saves them: config, shapes, a checksum."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tests.support.tiny import Weights


class Case(Protocol):
    """A case makes its weights of random numbers."""

    def weights(self, shapes: Mapping[str, list[int]]) -> Weights:
        """The weights by their names in the checkpoint."""


@dataclass(frozen=True)
class Published:
    """A case in transformers: its config.json, its tensors' shapes, and the checksum of its weights."""

    config: dict[str, Any]
    shapes: dict[str, list[int]]
    checksum: int

    def weights_of(self, case: Case, maker: str) -> Weights:
        """The weights that the golden was made with; module `maker` makes it."""
        weights = case.weights(self.shapes)
        assert checksum(weights) == self.checksum, (
            f"numpy {np.__version__} makes other random weights than when the golden was made; "
            f"run python -m tests.models.{maker}"
        )
        return weights

    def write(self, path: Path, **arrays: NDArray[Any]) -> Path:
        """A file of these and of `arrays`; `read_texts` gives the former back."""
        path.parent.mkdir(exist_ok=True)
        texts = json.dumps({"config": self.config, "shapes": self.shapes, "checksum": self.checksum})
        np.savez_compressed(path, texts=np.frombuffer(texts.encode(), np.uint8), **arrays)
        return path


def read_texts(data: Mapping[str, NDArray[Any]]) -> dict[str, Any]:
    """The fields of `Published` in a file that `np.load` opened."""
    texts: dict[str, Any] = json.loads(data["texts"].tobytes())
    return texts


def checksum(weights: Weights) -> int:
    """CRC-32 of all numbers, by the order of names."""
    digest = 0
    for name in sorted(weights):
        digest = zlib.crc32(np.ascontiguousarray(weights[name], "<f4").tobytes(), digest)
    return digest
