"""The head for the token after the next one (multi-token prediction): a block behind the others, for drafts.

It joins the embedding of a token with the hidden state of the one before it. What it gives is read like the model's own
hidden states, and stands for the token's own where it guesses further.

Sources: DeepSeek-V3 (Liu et al. 2024, arXiv:2412.19437) and vLLM's models of DeepSeek, GLM-4.5 and Qwen3-Next. Hidden
states are those behind a final norm: the model's for the first guess, the head's own for others.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

from ollama_engine import nn
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep
from ollama_engine.models.base import Model, ModelInputs
from ollama_engine.models.decoder import Decoder, PreNormLayer

__all__ = ["NextTokenHead", "head_layer", "next_token_head"]

MANY, PART = 1 << 16, 4
"""From so many tokens on, `of_first_tokens` gives a head of this part of them."""


class NextTokenHead(nn.Module):
    """A model of one layer: each row has a token, and as its embedding the hidden state of the token before it."""

    architecture: ClassVar[str] = "nextn"

    token_norm = nn.RMSNorm("nextn.enorm", "n_embd")
    hidden_norm = nn.RMSNorm("nextn.hnorm", "n_embd")
    join = nn.Linear("nextn.eh_proj", "n_embd_twice", "n_embd")
    token_embd = nn.Embedding("nextn.embed_tokens", "n_embd", "n_vocab", optional=True)
    output_norm = nn.RMSNorm("nextn.shared_head_norm", "n_embd", optional=True)
    output = nn.Linear("nextn.shared_head_head", "n_embd", "n_vocab", optional=True)

    def __init__(self, scope: nn.Scope, model: Decoder, block: type[PreNormLayer]) -> None:
        super().__init__(scope)
        self._model = model
        self._block = block(scope)
        self.n_guessed = model.n_vocab
        """Tokens that it has logits of."""
        mine = {name for name in scope.weights if name.startswith(scope.prefix)}
        self.unused_weights = tuple(sorted(mine - scope.used))

    def of_first_tokens(self) -> NextTokenHead | None:
        """The same head with logits of the first tokens alone, which cost a part; None for a small vocabulary.

        Vocabularies are made by merging what comes most, so tokens of a language that is well covered have low ids
        (FR-Spec, arXiv:2502.14856, takes the most frequent ones). With the output of a small model such a head costs
        a third of what the whole one does.
        """
        if self.n_vocab < MANY:
            return None
        part = copy.copy(self)
        part.n_guessed = self.n_vocab // PART
        return part

    @property
    def n_vocab(self) -> int:
        return self._model.n_vocab

    @property
    def n_input_ids(self) -> int:
        return self._model.n_input_ids

    @property
    def n_embd(self) -> int:
        return self._model.n_embd

    @property
    def context_length(self) -> int:
        return self._model.context_length

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        return (head_layer(self._model),)

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: hidden states f32 [n_embd, n_outputs], behind the final norm."""
        model, o = self._model, self._model.options
        assert inputs.embeddings is not None, "each row has a hidden state"
        tokens = self.token_embd(inputs.tokens) if self.token_embd else model.embed(inputs.tokens)
        both = ops.concat(self.token_norm(tokens, o.norm_eps), self.hidden_norm(inputs.embeddings, o.norm_eps), 0)
        cache.set_layer(0)
        factors, temperature = model.rope_factors(inputs.tokens), model.temperature(inputs.positions)
        step = LayerStep(inputs.positions, o.rope, factors, cache, inputs.outputs, temperature)
        x = self._block.forward(self.join(both), step, o)
        return (self.output_norm if self.output_norm else model.output_norm)(x, o.norm_eps)

    def logits(self, x: Tensor) -> Tensor:
        """Hidden states [n_embd, n] -> f32 [n_guessed, n]."""
        if self.n_guessed < self.n_vocab:
            return (self.output or self._model.output).first(self.n_guessed, x)
        return self.output(x) if self.output else self._model.logits(x)

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: logits f32 [n_guessed, n_outputs]."""
        return self.logits(self.hidden(inputs, cache))


def head_layer(model: Model) -> LayerShape:
    """What the head of a model stores: as much as a block with attention."""
    attends = next(layer for layer in model.cache_layers if layer.attends)
    return replace(attends, window=None, state=())


def next_token_head(model: Model, weights: Mapping[str, Tensor]) -> NextTokenHead | None:
    """The head that lies among a file's weights, behind the blocks of `model`; None where its architecture has none.

    Raises ModelFormatError where it is not complete, or does not fit.
    """
    if not isinstance(model, Decoder) or model.next_block is None:
        return None
    scope = nn.Scope(weights, model.options).below(f"blk.{model.options.n_layer}")
    return NextTokenHead(scope, model, model.next_block)
