"""EAGLE-3's head: `general.architecture` = eagle3, which drafts for one other model and is no model alone.

Its first block reads the embedding of a token, and of the token before it what the model has behind three of its
blocks (auxiliary states); most heads have no other. Where it guesses further, what it made of its last row stands for
these. Most heads guess among the most frequent tokens only, which `d2t` names; many read tokens by the model's own
embeddings. Heads of EAGLE 3.1 normalize each auxiliary state, and pass on what is behind the final norm.

Source: Li et al. 2025 (arXiv:2503.01840), and the Eagle3 model of `speculators`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.input import Int32Array
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.aux_states import part_of_rows
from ollama_engine.models.base import ModelInputs
from ollama_engine.models.decoder import Decoder, PreNormLayer
from ollama_engine.models.options import Options, extended, read_common

__all__ = ["Eagle3Head", "Eagle3Options", "read_eagle3"]


@dataclass(frozen=True, kw_only=True)
class Eagle3Options(Options):
    blocks: tuple[int, ...]
    """Behind how many of the model's blocks each auxiliary state is."""
    n_aux: int
    """Numbers of the auxiliary states of one token."""
    n_draft: int = 0
    """Tokens that it has logits of."""
    norm_before_residual: bool
    """Whether the block adds to the state's norm, instead of the state."""
    norm_before_fc: bool
    n_aux_norms: int
    """Auxiliary states that are normalized one by one: all, or none."""
    n_target: int
    """Numbers of each."""
    norm_output: bool
    """Whether the final norm's result stands for the next row's states."""

    @property
    def layer(self) -> LayerShape:
        """What a block stores for a token."""
        return LayerShape(kv_heads=self.n_head_kv, key_dim=self.head_dim, value_dim=self.head_dim)


class HeadAttention(SelfAttention):
    """A few heads normalize queries and keys."""

    q_norm = nn.RMSNorm("attn_q_norm", "head_dim", optional=True)
    k_norm = nn.RMSNorm("attn_k_norm", "head_dim", optional=True)

    def project(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project(x, o)
        return self.q_norm(q, o.norm_eps) if self.q_norm else q, self.k_norm(k, o.norm_eps) if self.k_norm else k, v


class JoinedAttention(HeadAttention):
    """Queries, keys and values are made of an embedding and a state."""

    q = nn.Linear("attn_q", "n_embd_twice", "q_size")
    k = nn.Linear("attn_k", "n_embd_twice", "kv_size")
    v = nn.Linear("attn_v", "n_embd_twice", "kv_size")


class JoiningBlock(nn.Module):
    token_norm = nn.RMSNorm("attn_norm", "n_embd")
    state_norm = nn.RMSNorm("attn_norm_2", "n_embd")
    attention = nn.Part(JoinedAttention)
    ffn_norm = nn.RMSNorm("ffn_norm", "n_embd")
    mlp = nn.Part(nn.GatedMLP)

    def forward(self, tokens: Tensor, states: Tensor, step: LayerStep, o: Eagle3Options) -> Tensor:
        """Embeddings and states, each [n_embd, n] -> [n_embd, n_outputs]."""
        normed = self.state_norm(states, o.norm_eps)
        attended = self.attention.forward(ops.concat(self.token_norm(tokens, o.norm_eps), normed, 0), step, o)
        x = step.output_rows(attended) + step.output_rows(normed if o.norm_before_residual else states)
        return self.mlp.forward(self.ffn_norm(x, o.norm_eps)) + x


class FurtherBlock(PreNormLayer):
    attention = nn.Part(HeadAttention)


def make_block(scope: nn.Scope) -> JoiningBlock | FurtherBlock:
    """One block; the first joins embeddings and states."""
    return FurtherBlock(scope) if scope.block else JoiningBlock(scope)


class AuxNorm(nn.Module):
    norm = nn.RMSNorm("norm", "n_target")


class Eagle3Head(nn.Module):
    """The head of `model`. It implements `Model` and `MakesLogits`.

    A row's embedding is the auxiliary states of the token before, and behind them the head's own state. One of the two
    is zeros: the latter behind tokens that the model has computed, the former behind guesses.
    """

    architecture: ClassVar[str] = "eagle3"
    options: Eagle3Options

    token_embd = nn.Embedding("token_embd", "n_embd", "n_vocab", optional=True)
    aux_norm = nn.RMSNorm("enc.output_norm", "n_aux", optional=True)
    aux_norms = nn.Blocks(AuxNorm, "n_aux_norms", "enc")
    join = nn.Linear("fc", "n_aux", "n_embd")
    layers: nn.Blocks[Any] = nn.Blocks(make_block, "n_layer")
    rope_freqs = nn.Factors("rope_freqs", "n_rope_factors")
    output_norm = nn.RMSNorm("output_norm", "n_embd")
    output = nn.Linear("output", "n_embd", "n_draft", optional=True)

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor], model: Decoder) -> None:
        """Raises ModelFormatError where the tensors do not fit, or the head does not fit `model`."""
        self._model = model
        o = read_eagle3(metadata)
        if o.n_aux != len(o.blocks) * model.n_embd:
            n = o.n_aux // len(o.blocks)
            raise ModelFormatError(f"it drafts for a model with {n} numbers a token, not for {model.n_embd}")
        self.tokens = _tokens(weights, model)
        """The model's token for each of its own; None where they are the same."""
        own = weights.get("token_embd.weight")
        self.options = replace(
            o, n_draft=model.n_vocab if self.tokens is None else len(self.tokens),
            n_vocab=model.n_input_ids if own is None else own.dim(1),
        )  # fmt: skip
        scope = nn.Scope(weights, self.options)
        super().__init__(scope)
        self.unused_weights = tuple(sorted(set(weights) - scope.used - {"d2t"}))
        self._check()

    def _check(self) -> None:
        """Raise ModelFormatError where it has to take from the model what does not fit."""
        o, model = self.options, self._model
        if o.n_vocab < model.n_input_ids:
            raise ModelFormatError(f"it has embeddings of {o.n_vocab} tokens, and the model {model.n_input_ids}")
        if o.norm_before_fc and not self.aux_norm:
            raise ModelFormatError("the file has no tensor enc.output_norm.weight, and norm_before_fc is on")
        if o.n_embd != model.n_embd and not (self.token_embd and self.output):
            raise ModelFormatError(
                f"it has {o.n_embd} numbers a token, the model {model.n_embd}, and no embeddings and output of its own"
            )
        if o.n_draft != model.n_vocab and not self.output:
            raise ModelFormatError(f"it names {o.n_draft} tokens (d2t), and has no output for them")

    @property
    def n_vocab(self) -> int:
        """Tokens that it has logits of."""
        return self.options.n_draft

    @property
    def n_input_ids(self) -> int:
        return self._model.n_input_ids

    @property
    def n_embd(self) -> int:
        """Length of what comes with a token: auxiliary states, and one of its own."""
        return self.options.n_aux + self.options.n_embd

    @property
    def context_length(self) -> int:
        return self._model.context_length

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        return (self.options.layer,) * self.options.n_layer

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: states f32 [options.n_embd, n_outputs], which stand for those of the next row."""
        o, rows = self.options, inputs.embeddings
        assert rows is not None, "each row has states"
        aux = part_of_rows(rows, 0, o.n_aux)
        states = self.join(self._normed(aux)) + part_of_rows(rows, o.n_aux, o.n_embd)
        tokens = (self.token_embd if self.token_embd else self._model.token_embd)(inputs.tokens)
        x: Tensor = states
        for i, block in enumerate(self.layers):
            cache.set_layer(i)
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            step = LayerStep(inputs.positions, o.rope, self.rope_freqs.weight, cache, outputs)
            x = block.forward(x, step, o) if i else block.forward(tokens, states, step, o)
        return self.output_norm(x, o.norm_eps) if o.norm_output else x

    def _normed(self, aux: Tensor) -> Tensor:
        """Auxiliary states [n_aux, n], normalized as this head does it."""
        o = self.options
        if self.aux_norm:
            aux = self.aux_norm(aux, o.norm_eps)
        parts = [
            each.norm(part_of_rows(aux, i * o.n_target, o.n_target), o.norm_eps)
            for i, each in enumerate(self.aux_norms)
        ]
        return functools.reduce(lambda joined, part: ops.concat(joined, part, 0), parts) if parts else aux

    def logits(self, x: Tensor) -> Tensor:
        """States [options.n_embd, n] -> f32 [n_vocab, n]."""
        if not self.options.norm_output:
            x = self.output_norm(x, self.options.norm_eps)
        return (self.output if self.output else self._model.output)(x)

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: logits f32 [n_vocab, n_outputs]."""
        return self.logits(self.hidden(inputs, cache))


def read_eagle3(metadata: Metadata) -> Eagle3Options:
    """Options of a head's file. Raises ModelFormatError."""
    o = read_common(metadata, 0, rope_mode="norm")
    blocks = metadata.list("target_layers", [])
    if not blocks or not all(isinstance(block, int) for block in blocks):
        raise ModelFormatError(f"target_layers are the numbers of blocks, got {blocks!r:.80}")
    n_target = metadata.u32("target_hidden_size")
    return extended(
        o, Eagle3Options, blocks=tuple(int(block) for block in blocks),
        n_aux=len(blocks) * n_target, n_target=n_target,
        n_aux_norms=len(blocks) if metadata.bool("fc_norm", False) else 0,
        norm_output=metadata.bool("norm_output", False),
        norm_before_residual=metadata.bool("norm_before_residual", False),
        norm_before_fc=metadata.bool("norm_before_fc", False),
    )  # fmt: skip


def _tokens(weights: Mapping[str, Tensor], model: Decoder) -> Int32Array | None:
    """What `d2t` says. Raises ModelFormatError for what is no list of the model's tokens."""
    tensor = weights.get("d2t")
    if tensor is None:
        return None
    if tensor.dtype not in ("i32", "i64") or len(tensor.shape) != 1:
        raise ModelFormatError(f"d2t is a list of tokens, and has {list(tensor.shape)} elements of type {tensor.dtype}")
    tokens = tensor.numpy()
    if tokens.size and not 0 <= tokens.min() <= tokens.max() < model.n_vocab:
        raise ModelFormatError(
            f"d2t names tokens from {tokens.min()} to {tokens.max()}, and the model has {model.n_vocab}"
        )
    return tokens.astype(np.int32)
