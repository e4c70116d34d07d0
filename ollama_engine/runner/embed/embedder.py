"""Embedder: texts to pooled vectors, several in one graph. The engine's thread owns it.

It computes while nothing else does. An encoder has one executor; a model that writes has another one for texts, which
take no cells and see each other as little as those of an encoder do.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ollama_engine.config import Pooling
from ollama_engine.errors import ComputeError
from ollama_engine.ml.graph.context import Context
from ollama_engine.models import TextEncoder
from ollama_engine.runner.embed.layout import batch_of, places
from ollama_engine.runner.embed.pooling import FloatArray, pool_all
from ollama_engine.runner.embed.tokenized_text import TokenizedText
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load.loading import Loaded

__all__ = ["Embedder"]


class Embedder:
    """Computes batches. `head_pooling` is what a classification head is given."""

    def __init__(self, loaded: Loaded, executor: Executor, head_pooling: Pooling) -> None:
        self._loaded = loaded
        self._executor = executor
        self._head_pooling = head_pooling

    def compute(self, texts: Sequence[TokenizedText]) -> list[FloatArray | ComputeError]:
        """A vector float32 [n_embd] for each text; [n_tokens, n_embd] for "none", [n_scores] for "rank".

        All are one batch. A text for which the model computes NaN gets an error; others are raised.
        """
        executor, shared = self._executor, self._loaded.executor
        ranked = [i for i, text in enumerate(texts) if text.pooling == "rank"]
        # Graphs of both, and of the classification head, are allocated in the same memory.
        if executor is not shared:
            executor.moved()
        try:
            vectors = self._vectors(executor, texts)
            if ranked:
                scores = self._scores(np.stack([vectors[i] for i in ranked]))
                for i, row in zip(ranked, scores, strict=True):
                    vectors[i] = row
        finally:
            # Where something failed a batch may be prepared, of which the next one knows nothing.
            executor.scrap()
            if executor is not shared or ranked:
                shared.moved()
        return [vector if np.isfinite(vector).all() else _unsound() for vector in vectors]

    def _vectors(self, executor: Executor, texts: Sequence[TokenizedText]) -> list[FloatArray]:
        """The pooled vectors of the texts, before a classification head."""
        poolings = [self._head_pooling if text.pooling == "rank" else text.pooling for text in texts]
        where = places([len(text.tokens) for text in texts], executor.batch_size)
        batch = batch_of(texts, poolings, where)
        executor.prepare(batch)
        executor.launch(batch.tokens)
        lengths = [len(texts[number].tokens) for number in where.order]
        with executor.results() as rows:
            pooled = pool_all(rows, lengths, [poolings[number] for number in where.order])
        return [vector for _, vector in sorted(zip(where.order, pooled, strict=True), key=lambda found: found[0])]

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


def _unsound() -> ComputeError:
    return ComputeError("the model computes NaN or infinity for this text; its file may be damaged")
