"""Results of calls: vectors in one array, or an Embedding for each text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np

from ollama_engine.runner.embed.pooling import FloatArray, finish
from ollama_engine.runner.embed.tokenized_text import TokenizedText

__all__ = ["Embedding", "Embeddings", "Results", "Vectors"]

Index = tuple[int | slice, ...]

Value_co = TypeVar("Value_co", covariant=True)


class Results(Protocol[Value_co]):
    """Collects the vectors of a call. Only the engine thread writes into it."""

    def put(self, numbers: Sequence[int], texts: Sequence[TokenizedText], vectors: Sequence[FloatArray]) -> None:
        """Store the vectors of the texts with these numbers."""

    def value(self) -> Value_co:
        """The result for the caller, after all vectors are stored."""


@dataclass(frozen=True, eq=False)
class Embedding:
    """The embedding of one text.

    Attributes:
        vector: float32 [dim]; with pooling "none" [n_tokens, dim], one for each token.
        prompt_tokens: tokens of the text, special ones included; of one that no context of num_ctx tokens could hold,
            those of its beginning.
        dropped_tokens: tokens of these cut from the end, because the text had more than num_ctx.
    """

    vector: FloatArray
    prompt_tokens: int
    dropped_tokens: int


class Vectors:
    """All vectors in one array float32 [n, dim], shortened and normalized; `index` picks the caller's result."""

    def __init__(self, n: int, dim: int, *, normalize: bool, index: Index = ()) -> None:
        self._rows = np.empty((n, dim), dtype=np.float32)
        self._normalize = normalize
        self._index = index

    def put(self, numbers: Sequence[int], texts: Sequence[TokenizedText], vectors: Sequence[FloatArray]) -> None:
        self._rows[numbers] = finish(np.stack(vectors), self._rows.shape[1], normalize=self._normalize)

    def value(self) -> FloatArray:
        return self._rows[self._index]


class Embeddings:
    """An Embedding for each text, its vector shortened and normalized."""

    def __init__(self, n: int, dim: int, *, normalize: bool) -> None:
        self._embeddings: list[Embedding | None] = [None] * n
        self._dim = dim
        self._normalize = normalize

    def put(self, numbers: Sequence[int], texts: Sequence[TokenizedText], vectors: Sequence[FloatArray]) -> None:
        for number, text, vector in zip(numbers, texts, vectors, strict=True):
            done = finish(vector, self._dim, normalize=self._normalize)
            self._embeddings[number] = Embedding(done, text.length, text.length - len(text.tokens))

    def value(self) -> list[Embedding]:
        return [embedding for embedding in self._embeddings if embedding is not None]
