"""What a call for embeddings or scores gets: vectors in one array, or an Embedding for each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np

from ollama_engine.runner.embed.pooling import FloatArray, finish

if TYPE_CHECKING:
    from ollama_engine.runner.embed.request import TokenizedText

__all__ = ["Embedding", "Embeddings", "Results", "Vectors"]

Index = tuple[int | slice, ...]

Value_co = TypeVar("Value_co", covariant=True)


class Results(Protocol[Value_co]):
    """Where the vectors of a call are put together. Only the engine's thread writes into it."""

    def put(self, numbers: Sequence[int], texts: Sequence[TokenizedText], vectors: Sequence[FloatArray]) -> None:
        """What came of the texts of these numbers."""

    def value(self) -> Value_co:
        """What the caller gets, once all are there."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """What a text became.

    Attributes:
        vector: float32 [dim]; with pooling "none" [n_tokens, dim], one for each token.
        prompt_tokens: tokens of the text, special ones included.
        dropped_tokens: of these, left out at the end because they were more than num_ctx.
    """

    vector: FloatArray
    prompt_tokens: int
    dropped_tokens: int


class Vectors:
    """All in one array float32 [n, dim], cut and normalized, of which the caller gets what `index` picks."""

    def __init__(self, n: int, dim: int, *, normalize: bool, index: Index = ()) -> None:
        self._rows = np.empty((n, dim), dtype=np.float32)
        self._normalize = normalize
        self._index = index

    def put(self, numbers: Sequence[int], texts: Sequence[TokenizedText], vectors: Sequence[FloatArray]) -> None:
        self._rows[numbers] = finish(np.stack(vectors), self._rows.shape[1], normalize=self._normalize)

    def value(self) -> FloatArray:
        return self._rows[self._index]


class Embeddings:
    """An Embedding for each text, of vectors cut and normalized."""

    def __init__(self, n: int, dim: int, *, normalize: bool) -> None:
        self._found: list[Embedding | None] = [None] * n
        self._dim = dim
        self._normalize = normalize

    def put(self, numbers: Sequence[int], texts: Sequence[TokenizedText], vectors: Sequence[FloatArray]) -> None:
        for number, text, vector in zip(numbers, texts, vectors, strict=True):
            done = finish(vector, self._dim, normalize=self._normalize)
            self._found[number] = Embedding(done, text.length, text.length - len(text.tokens))

    def value(self) -> list[Embedding]:
        return [found for found in self._found if found is not None]
