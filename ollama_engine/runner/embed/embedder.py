"""Embedder: texts to pooled vectors, several in one graph. The engine's thread owns it.

It computes while nothing else does. An encoder has one executor; a model that writes has another one for texts, which
take no cells and see each other as little as those of an encoder do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np

from ollama_engine.config import OneVector, Pooling
from ollama_engine.errors import ComputeError
from ollama_engine.kvcache.null_paged import lists_rows
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models import ProjectsVectors, Ranks
from ollama_engine.runner.embed.layout import batch_of, places
from ollama_engine.runner.embed.pooling import FloatArray, pool_all
from ollama_engine.runner.embed.tokenized_text import TokenizedText
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.execute.graph import raise_error
from ollama_engine.runner.load.loading import Loaded

__all__ = ["Embedder"]


class Embedder:
    """Computes batches. `head_pooling` is what a classification head is given."""

    def __init__(self, loaded: Loaded, executor: Executor | None, head_pooling: Pooling) -> None:
        """`executor`: None for a model of images alone."""
        self._loaded = loaded
        self._executor = executor
        self._head_pooling = head_pooling
        self._in_parts = not lists_rows(loaded.backend)
        # isinstance with a Protocol, once and here: an interrupt in that check would be lost.
        model: object = loaded.model
        self._behind: dict[str, Callable[[Tensor], Tensor]] = {}
        """The layers behind each pooling."""
        if isinstance(model, Ranks):
            self._behind["rank"] = model.scores
        if isinstance(model, ProjectsVectors):
            self._behind |= dict.fromkeys(get_args(OneVector), model.project)

    def compute(self, texts: Sequence[TokenizedText]) -> list[FloatArray | ComputeError]:
        """A vector float32 [n_vector] for each text; [n_tokens, n_embd] for "none", [n_scores] for "rank".

        All are one batch. A text for which the model computes NaN gets an error; others are raised. Images are encoded.
        """
        written = [text for text in texts if len(text.tokens)]
        found = iter(self._written(self._executor, written) if self._executor is not None and written else ())
        vectors = [next(found) if len(text.tokens) else text.images[0].embeddings()[0] for text in texts]
        return [vector if np.isfinite(vector).all() else _unsound() for vector in vectors]

    def _written(self, executor: Executor, texts: Sequence[TokenizedText]) -> list[FloatArray]:
        behind: dict[Callable[[Tensor], Tensor], list[int]] = {}
        for i, text in enumerate(texts):
            if text.pooling in self._behind:
                behind.setdefault(self._behind[text.pooling], []).append(i)
        try:
            vectors = self._vectors(executor, texts)
            for layers, numbers in behind.items():
                rows = self._through(layers, np.stack([vectors[i] for i in numbers]))
                for i, row in zip(numbers, rows, strict=True):
                    vectors[i] = row
        finally:
            # Where something failed a batch may be prepared, of which the next one knows nothing.
            executor.scrap()
        return vectors

    def _vectors(self, executor: Executor, texts: Sequence[TokenizedText]) -> list[FloatArray]:
        """The pooled vectors of the texts, before a classification head."""
        poolings = [self._head_pooling if text.pooling == "rank" else text.pooling for text in texts]
        where = places([len(text.tokens) for text in texts], executor.batch_size, parts=self._in_parts)
        batch = batch_of(texts, poolings, where, executor.traits.position_axes)
        media = executor.media_rows(batch, raise_error)
        executor.prepare(batch)
        executor.launch(batch.tokens, media)
        lengths = [len(texts[number].tokens) for number in where.order]
        with executor.results() as rows:
            pooled = pool_all(rows, lengths, [poolings[number] for number in where.order])
        return [vector for _, vector in sorted(zip(where.order, pooled, strict=True), key=lambda found: found[0])]

    def _through(self, layers: Callable[[Tensor], Tensor], pooled: FloatArray) -> FloatArray:
        """[n, n_embd] -> [n, m], by layers behind the pooling."""
        with Context(self._loaded.backend) as ctx:
            x = ctx.input("f32", pooled.shape[::-1], name="pooled")
            y = layers(x)
            if y is x:
                return pooled
            ctx.forward(y)
            ctx.alloc()
            x.set(pooled)
            ctx.compute()
            return y.numpy().reshape(len(pooled), y.dim(0)).copy()


def _unsound() -> ComputeError:
    return ComputeError("the model computes NaN or infinity for this text; its file may be damaged")
