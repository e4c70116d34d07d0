"""Gemma 4's assistant: `general.architecture` = gemma4-assistant, which drafts for a Gemma 4 and is no model alone.

Four small blocks that have queries only: they attend to what the model's last local and last global layer have stored.
Their input is the model's embedding of the last token, and the hidden state that this token was drawn from; for further
guesses it is the guess, and what the assistant made of its own state. All guesses stand at one position: that of the
last token. Source: Google 2026 (transformers' Gemma4AssistantForCausalLM and its candidate generator).

Small assistants also have centroids, which choose the part of the vocabulary that is looked at. They are left aside, as
in llama.cpp: all tokens are looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape, LayerView
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.base import Model, ModelInputs
from ollama_engine.models.gemma4.options import Gemma4Options, read
from ollama_engine.models.gemma4.text import Gemma4Text, Layer, QueryAttention, Step

__all__ = ["Gemma4Assistant"]

ALONE = ("attention.shared_kv_layers", "nextn_predict_layers")
"""Keys that count all of its blocks."""
CENTROIDS = "masked_embd"
"""The names of what is left aside begin with it."""


@dataclass(frozen=True, kw_only=True)
class AssistantOptions(Gemma4Options):
    n_embd_out: int
    """Length of the model's hidden states."""

    @property
    def n_embd_joined(self) -> int:
        """Length of an embedding and a hidden state of the model."""
        return 2 * self.n_embd_out


class AssistantLayer(Layer):
    attention = nn.Part(QueryAttention)


class Gemma4Assistant(nn.Module):
    """The assistant of `model`, with whose embeddings it reads tokens. It implements `Model` and `MakesLogits`."""

    architecture: ClassVar[str] = "gemma4-assistant"
    options: AssistantOptions

    join = nn.Linear("nextn.pre_projection", "n_embd_joined", "n_embd")
    layers: nn.Blocks[Any] = nn.Blocks(AssistantLayer, "n_layer")
    rope_freqs = nn.Weight("rope_freqs", "n_rope_factors")
    output_norm = nn.RMSNorm("output_norm", "n_embd")
    project = nn.Linear("nextn.post_projection", "n_embd", "n_embd_out")
    output = nn.Linear("token_embd", "n_embd", "n_vocab")

    def __init__(self, metadata: Metadata, weights: Mapping[str, Tensor], model: Model) -> None:
        """Raises ModelFormatError where the tensors do not fit, or the assistant does not fit `model`."""
        if not isinstance(model, Gemma4Text):
            raise ModelFormatError(f"it drafts for a Gemma 4, not for {model.architecture}")
        self._model = model
        self.read_layers = _last_stored(model)
        """The layers of the model that it attends to: a local one, and a global one."""
        self.options = _read(metadata, model.n_vocab)
        scope = nn.Scope(weights, self.options)
        super().__init__(scope)
        self.unused_weights = tuple(
            name for name in sorted(set(weights) - scope.used) if not name.startswith(CENTROIDS)
        )
        self._check()

    def _check(self) -> None:
        """Raise ModelFormatError where its queries do not fit the model's keys."""
        o, n_embd = self.options, self._model.n_embd
        if o.n_embd_out != n_embd:
            raise ModelFormatError(f"it drafts for a Gemma 4 with {o.n_embd_out} numbers a token, not for {n_embd}")
        for own, window in zip(o.layers, o.windows, strict=True):
            theirs = self._model.options.layers[self.read_layers[_kind(window)]]
            if own.head_dim != theirs.head_dim or own.n_head % theirs.n_head_kv:
                raise ModelFormatError(
                    f"its {own.n_head} heads of {own.head_dim} numbers do not fit the model's {theirs.n_head_kv} "
                    f"of {theirs.head_dim}"
                )

    @property
    def n_vocab(self) -> int:
        return self.options.n_vocab

    @property
    def n_input_ids(self) -> int:
        return self._model.n_input_ids

    @property
    def n_embd(self) -> int:
        """Length of the hidden state that comes with a token: that of the model's."""
        return self.options.n_embd_out

    @property
    def context_length(self) -> int:
        return self._model.context_length

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """None: it stores nothing."""
        return ()

    def hidden(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: f32 [n_embd + n, n_outputs], hidden states for further guesses and, behind them, its own.

        `cache` has the `read_layers` of the model.
        """
        o = self.options
        assert inputs.embeddings is not None, "each row has a hidden state"
        x = self.join(ops.concat(self._model.embed(inputs.tokens), inputs.embeddings, 0))
        for i, (layer, window) in enumerate(zip(self.layers, o.windows, strict=True)):
            cache.set_layer(_kind(window))
            factors = self.rope_freqs.tensor if window is None else None
            outputs = inputs.outputs if i == o.n_layer - 1 else None
            x = layer.forward(x, Step(inputs.positions, o.ropes[i], factors, cache, outputs), o)
        x = self.output_norm(x, o.norm_eps)
        return ops.concat(self.project(x), x, 0)

    def logits(self, x: Tensor) -> Tensor:
        """What `hidden` gives, for n tokens -> f32 [n_vocab, n]."""
        n, begin = self.options.n_embd, self.options.n_embd_out
        return self.output(ops.cont(ops.view(x, (n, x.dim(1)), (x.stride(1),), begin * x.stride(0))))

    def forward(self, inputs: ModelInputs, cache: LayerView) -> Tensor:
        """Build the graph: logits f32 [n_vocab, n_outputs]."""
        return self.logits(self.hidden(inputs, cache))


def _read(metadata: Metadata, n_vocab: int) -> AssistantOptions:
    own = Metadata({key: value for key, value in metadata.values.items() if key not in map(metadata.key, ALONE)})
    o = read(own, n_vocab)
    return AssistantOptions(
        **{field.name: getattr(o, field.name) for field in fields(o)}, n_embd_out=metadata.u32("embedding_length_out")
    )


def _kind(window: int | None) -> int:
    """Which of `read_layers` a layer with this window attends to."""
    return int(window is None)


def _last_stored(model: Gemma4Text) -> tuple[int, int]:
    """The last local layer and the last global one with keys and values of their own. Raises ModelFormatError."""
    stored = [i for i, source in enumerate(model.options.sources) if source == i]
    local, whole = (
        [i for i in stored if (model.options.windows[i] is None) is is_global] for is_global in (False, True)
    )
    if not local or not whole:
        raise ModelFormatError("it drafts for a Gemma 4 with local and with global layers")
    return local[-1], whole[-1]
