"""Jina Embeddings 3: `general.architecture` = jina-bert-v3. Source: Sturua et al. 2024.

XLM-R that rotates queries and keys, and an adapter for each task: to each product W x comes B A x, where A and B have a
few rows and columns (Hu et al. 2021). Texts of all tasks are computed together: the adapters lie side by side in one
matrix of each kind, and of A x a mask keeps the rows of a token's own task.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.bert import NomicBert, PostNormLayer
from ollama_engine.models.bidirectional import MAX_SCORES, BidirectionalOptions, read_bidirectional
from ollama_engine.models.fused import FusedAttention


class AdapterMask:
    """The mask of the graph that is being built, f32 [rows of all adapters, n]; None without adapters."""

    tensor: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class JinaOptions(BidirectionalOptions):
    n_tasks: int
    n_adapter: int
    """Rows of the adapters of all tasks; 0 without adapters."""
    mask: AdapterMask = field(default_factory=AdapterMask)

    @property
    def n_masks(self) -> int:
        """Columns of the table of masks: none, and each task."""
        return self.n_tasks + 1


class AdaptedLinear(nn.Linear):
    """A product with the adapters' behind it. Files without adapters have the product alone."""

    mask: AdapterMask
    adapter: tuple[Tensor, Tensor] | None

    def bind(self, scope: nn.Scope) -> Any:
        """A bound copy. Raises ModelFormatError where a tensor is missing or does not fit."""
        bound = super().bind(scope)
        bound.mask, bound.adapter = scope.options.mask, bind_adapter(scope, self.name, self.dims)
        return bound

    def __call__(self, x: Tensor) -> Tensor:
        y = super().__call__(x)
        if self.adapter is None or self.mask.tensor is None:
            return y
        down, up = self.adapter
        return y + ops.mul_mat(up, ops.mul_mat(down, x) * self.mask.tensor)


def bind_adapter(scope: nn.Scope, name: str, dims: tuple[str | int, ...]) -> tuple[Tensor, Tensor] | None:
    """A x -> x, of all tasks: [in, n_adapter] and [n_adapter, out]; None in a file without adapters."""
    if not scope.options.n_adapter:
        return None
    down = scope.require([f"{name}.lora_a.weight"], (dims[0], "n_adapter"))
    return down, scope.require([f"{name}.lora_b.weight"], ("n_adapter", dims[1]))


class JinaAttention(FusedAttention):
    qkv = AdaptedLinear("attn_qkv", "n_embd", "qkv_size", bias=True)
    output = AdaptedLinear("attn_output", "q_size", "n_embd", bias=True)

    def forward(self, x: Tensor, step: LayerStep, o: Any) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]. Behind the last attention are the output rows alone, and so is their mask."""
        y = super().forward(x, step, o)
        if o.mask.tensor is not None:
            o.mask.tensor = step.output_rows(o.mask.tensor)
        return y


class JinaMLP(nn.ErfMLP):
    up = AdaptedLinear("ffn_up", "n_embd", "n_ff", bias=True)
    down = AdaptedLinear("ffn_down", "n_ff", "n_embd", bias=True)


class JinaLayer(PostNormLayer):
    attention = nn.Part(JinaAttention)
    mlp = nn.Part(JinaMLP)


class Adapters(nn.Module):
    """The table of masks, and the adapters of the embeddings: rows of A by token, and B."""

    masks = nn.Embedding("adapters", "n_adapter", "n_masks")
    tokens = nn.Embedding("token_embd.lora_a", "n_adapter", "n_vocab")
    tokens_up = nn.Linear("token_embd.lora_b", "n_adapter", "n_embd")
    types = nn.Weight("token_types.lora_a", "n_adapter", 1)
    types_up = nn.Linear("token_types.lora_b", "n_adapter", "n_embd")

    def __init__(self, scope: nn.Scope) -> None:
        if scope.options.n_adapter:
            super().__init__(scope)

    def forward(self, x: Tensor, tokens: Tensor, mask: Tensor) -> Tensor:
        """Embeddings x [n_embd, n] of `tokens` [n], with those of the adapters."""
        return x + self.tokens_up(self.tokens(tokens) * mask) + self.types_up(mask * self.types.tensor)


class JinaBertV3(NomicBert):
    architecture = "jina-bert-v3"
    options: JinaOptions

    layers = nn.Blocks(JinaLayer, "n_layer")
    adapters = nn.Part(Adapters)

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> JinaOptions:
        tasks, rank = metadata.list("adapter.tasks", []), metadata.u32("adapter.rank", 0)
        if bool(tasks) != bool(rank) or len(tasks) * rank > MAX_SCORES:
            raise ModelFormatError(f"adapters of {len(tasks)} tasks with {rank} rows each are none that a model has")
        o = read_bidirectional(metadata, n_vocab)
        return JinaOptions(**vars(o), n_tasks=len(tasks), n_adapter=len(tasks) * rank)

    @property
    def n_token_types(self) -> int:
        """Types say which adapter a token has, 0 for none: all tokens are of the first row of `token_types`."""
        return self.options.n_masks if self.options.n_adapter else 0

    def embed(self, inputs: ModelInputs) -> Tensor:
        """Input of the first block, before the norm; makes the mask for the blocks' products."""
        mask, x = self.options.mask, self.token_embd(inputs.tokens)
        x = x + self.token_types.tensor if self.token_types else x
        mask.tensor = None if inputs.types is None else self.adapters.masks(inputs.types)
        return x if mask.tensor is None else self.adapters.forward(x, inputs.tokens, mask.tensor)
