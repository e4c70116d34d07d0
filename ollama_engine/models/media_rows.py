"""Rows of media in a batch: their embeddings replace those of tokens, and their features join the hidden states.

With deepstack (Meng et al. 2024, arXiv:2406.04334) an image has features for each of the first layers, beside its
embeddings. They lie behind each embedding, in the same row, so whatever keeps, cuts and moves rows of embeddings
keeps them together.
"""

from __future__ import annotations

from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import ModelInputs

__all__ = ["with_embeddings", "with_features"]


def with_embeddings(x: Tensor, inputs: ModelInputs) -> Tensor:
    """Embeddings of tokens f32 [n_embd, n], replaced in the rows of media."""
    if inputs.embeddings is None or inputs.embedding_rows is None:
        return x
    return ops.set_rows(x, _part(inputs.embeddings, 0, x.dim(0)), inputs.embedding_rows)


def with_features(x: Tensor, inputs: ModelInputs, layer: int) -> Tensor:
    """What a layer gives, f32 [n_embd, n], and in the rows of media the features for this layer, where there are some.

    `x` has all rows of the batch.
    """
    n_embd, rows, which = x.dim(0), inputs.embeddings, inputs.embedding_rows
    if rows is None or which is None or rows.dim(0) < (layer + 2) * n_embd:
        return x
    return ops.set_rows(x, ops.get_rows(x, which) + _part(rows, layer + 1, n_embd), which)


def _part(rows: Tensor, number: int, n_embd: int) -> Tensor:
    """The numbers [number * n_embd, (number + 1) * n_embd) of each row."""
    if rows.dim(0) == n_embd:
        return rows
    return ops.view(rows, (n_embd, rows.dim(1)), (rows.stride(1),), number * n_embd * rows.stride(0))
