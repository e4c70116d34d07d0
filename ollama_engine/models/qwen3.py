"""Qwen3, dense: `general.architecture` = qwen3 (with experts: qwen_moe.py).

Qwen2 without biases; each head of queries and keys is normalized before it is rotated. Source: Yang et al. 2025.
Qwen3-Reranker says by its next token whether a document answers a query; its files have those rows of the output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ollama_engine import nn
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import SelfAttention
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.options import Options, extended, read_common

YES_NO = ["yes", "no"]
"""Labels of llama.cpp's files: the score is the probability of the first, of these two."""


@dataclass(frozen=True, kw_only=True)
class Qwen3Options(Options):
    n_labels: int
    """Rows of the classification head, where the file has one."""
    yes_no: bool


class NormedAttention(SelfAttention):
    """Queries and keys are normalized head by head."""

    q_norm = nn.RMSNorm("attn_q_norm", "head_dim")
    k_norm = nn.RMSNorm("attn_k_norm", "head_dim")

    def project(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, o)
        return self.q_norm(q, o.norm_eps), self.k_norm(k, o.norm_eps), v


class Layer(PreNormLayer):
    attention = nn.Part(NormedAttention)


class Qwen3(Decoder):
    """Implements `models.Ranks`."""

    architecture = "qwen3"
    head_pooling: ClassVar[Literal["cls", "mean", "last"]] = "last"
    options: Qwen3Options

    layers = nn.Blocks(Layer, "n_layer")
    head = nn.Linear("cls.output", "n_embd", "n_labels", optional=True)

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Qwen3Options:
        labels = metadata.list("classifier.output_labels", [])
        o = read_common(metadata, n_vocab)
        return extended(o, Qwen3Options, n_labels=len(labels) or 1, yes_no=labels == YES_NO)

    @property
    def n_scores(self) -> int:
        """Scores of the classification head; 0 without one."""
        if not self.head:
            return 0
        return 1 if self.options.yes_no else self.options.n_labels

    def scores(self, pooled: Tensor) -> Tensor:
        """Build the graph: pooled hidden states f32 [n_embd, n] -> f32 [n_scores, n]."""
        rows = self.head(pooled)
        if not self.options.yes_no:
            return rows
        probabilities = ops.softmax(rows)
        return ops.cont(ops.view(probabilities, (1, rows.dim(1)), (rows.stride(1),)))
