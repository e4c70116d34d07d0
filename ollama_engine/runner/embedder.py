"""Embedder: texts to pooled vectors, several in one graph. The loop's thread owns it.

It computes while nothing else does. An encoder's executor gives hidden states anyway; for a model that writes, another
one is made when it is first asked for: its texts take no cells, and see each other as little as those of an encoder.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ollama_engine.config import Pooling
from ollama_engine.errors import ComputeError
from ollama_engine.input import Batch, Int32Array
from ollama_engine.ml.context import Context
from ollama_engine.models import TextEncoder
from ollama_engine.runner.loading import Loaded
from ollama_engine.runner.pooling import FloatArray, pool, rows_of

__all__ = ["Embedder", "Text"]


class Text(NamedTuple):
    """What is computed for one embedding, or one score."""

    tokens: Int32Array
    pooling: Pooling
    second: int | None = None
    """Of a pair: where its second text begins."""

    @property
    def types(self) -> Int32Array:
        """Of each token, 1 for those of the second text."""
        types = np.zeros(len(self.tokens), dtype=np.int32)
        if self.second is not None:
            types[self.second :] = 1
        return types


class Embedder:
    """Computes batches. `head_pooling` is what a classification head is given."""

    def __init__(self, loaded: Loaded, head_pooling: Pooling) -> None:
        self._loaded = loaded
        self._head_pooling = head_pooling

    def compute(self, texts: Sequence[Text]) -> list[FloatArray | ComputeError]:
        """A vector float32 [n_embd] for each text; [n_tokens, n_embd] for "none", [n_scores] for "rank".

        All are one batch. A text for which the model computes NaN gets an error; others are raised.
        """
        executor, shared = self._loaded.embedding_executor(), self._loaded.executor
        ranked = [i for i, text in enumerate(texts) if text.pooling == "rank"]
        # Graphs of both, and of the classification head, are allocated in the same memory.
        if executor is not shared:
            executor.moved()
        try:
            rows = executor.run(_batch(texts, [self._read_by(text) for text in texts]))
            vectors = self._pooled(texts, rows)
            if ranked:
                scores = self._scores(np.stack([vectors[i] for i in ranked]))
                for i, row in zip(ranked, scores, strict=True):
                    vectors[i] = row
        finally:
            if executor is not shared or ranked:
                shared.moved()
        return [vector if np.isfinite(vector).all() else _unsound() for vector in vectors]

    def _read_by(self, text: Text) -> Pooling:
        return self._head_pooling if text.pooling == "rank" else text.pooling

    def _pooled(self, texts: Sequence[Text], rows: FloatArray) -> list[FloatArray]:
        vectors, at = [], 0
        for text in texts:
            pooling = self._read_by(text)
            begin, end = rows_of(len(text.tokens), pooling)
            vectors.append(pool(rows[at : at + end - begin], pooling))
            at += end - begin
        return vectors

    def _scores(self, pooled: FloatArray) -> FloatArray:
        """[n, n_embd] -> [n, n_scores], by the classification head."""
        model = self._loaded.model
        assert isinstance(model, TextEncoder)
        with Context(self._loaded.backend) as ctx:
            x = ctx.input("f32", pooled.shape[::-1], name="pooled")
            scores = model.scores(x)
            ctx.forward(scores)
            ctx.alloc()
            x.set(pooled)
            ctx.compute()
            return scores.numpy().reshape(len(pooled), model.n_scores).copy()


def _batch(texts: Sequence[Text], poolings: Sequence[Pooling]) -> Batch:
    lengths = [len(text.tokens) for text in texts]
    begins = np.cumsum([0, *lengths[:-1]])
    wanted = [np.arange(*rows_of(n, pooling)) + begin
              for n, pooling, begin in zip(lengths, poolings, begins.tolist(), strict=True)]  # fmt: skip
    return Batch(
        tokens=np.concatenate([text.tokens for text in texts]),
        positions=np.concatenate([np.arange(n, dtype=np.int32) for n in lengths]),
        sequences=np.repeat(np.arange(len(texts), dtype=np.int32), lengths),
        outputs=np.concatenate(wanted).astype(np.int32),
        types=np.concatenate([text.types for text in texts])
        if any(text.second is not None for text in texts)
        else None,
    )


def _unsound() -> ComputeError:
    return ComputeError("the model computes NaN or infinity for this text; its file may be damaged")
