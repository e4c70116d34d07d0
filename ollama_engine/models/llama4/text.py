"""The text model of Llama 4: `general.architecture` = llama4.

Most layers rotate queries and keys, normalize them after that, and attend within chunks of the text. Every fourth has
no positions and attends to all of it, with scores that grow sharper late in a long text. Layers are dense or have
experts; a chosen expert reads its input times the sigmoid of its score, and one expert is shared by all tokens.
Sources: Meta's release of 2025, and transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.kvcache import LayerShape
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.attention import LayerStep, SelfAttention
from ollama_engine.models.decoder import Decoder, PreNormLayer, SparseLayer
from ollama_engine.models.options import Options, read_llama

MAVERICK_EXPERTS = 128
"""llama.cpp has no key for `use_qk_norm`; of the published models only the one with so many experts goes without."""


@dataclass(frozen=True, kw_only=True)
class Llama4Options(Options):
    chunk: int | None
    """Layers with positions attend within chunks of this many tokens; None: to all tokens."""
    expert_period: int
    """The last of so many layers has experts; 0: none has."""
    qk_norm: bool
    """Whether layers with positions normalize queries and keys."""
    temperature_scale: float
    """How fast scores grow sharper in layers without positions; 0: they do not."""
    temperature_floor: int
    """Positions below this, less one, have scores as they are."""


class Llama4Attention(SelfAttention):
    def forward(self, x: Tensor, step: LayerStep, o: Llama4Options) -> Tensor:  # type: ignore[override]
        """x [n_embd, n] -> [n_embd, n]."""
        q, k, v = self.project(x, o)
        if step.rope is not None:
            q, k = step.rotate(q), step.rotate(k)
            if o.qk_norm:
                q, k = ops.rms_norm(q, o.norm_eps), ops.rms_norm(k, o.norm_eps)
        else:
            q = step.sharpened(q)
        step.cache.put(k, v)
        return self.output(nn.attention(q, step.cache, o.attention_scale))


class SharedMLP(nn.Module):
    """The expert that all tokens share."""

    gate = nn.Linear("ffn_gate_shexp", "n_embd", "n_ff_exp")
    up = nn.Linear("ffn_up_shexp", "n_embd", "n_ff_exp")
    down = nn.Linear("ffn_down_shexp", "n_ff_exp", "n_embd")

    def forward(self, x: Tensor) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        gate, up = nn.linears(x, self.gate, self.up)
        return self.down(ops.glu(gate, up))


class SparseMLP(nn.Mixture):
    """The sum of the chosen experts, each of which reads x times the sigmoid of its score, and of the shared one."""

    router = nn.Linear("ffn_gate_inp", "n_embd", "n_expert")
    gate = nn.ExpertLinear("ffn_gate_exps", "n_embd", "n_ff_exp", "n_expert")
    up = nn.ExpertLinear("ffn_up_exps", "n_embd", "n_ff_exp", "n_expert")
    down = nn.ExpertLinear("ffn_down_exps", "n_ff_exp", "n_embd", "n_expert")
    shared = nn.Part(SharedMLP)

    def route(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        return nn.route_sigmoid(self.router(x), o.n_expert_used)

    def forward(self, x: Tensor, o: Options) -> Tensor:
        """x [n_embd, n] -> [n_embd, n]."""
        ids, weights = self.choose(x, o)
        each = nn.weighted_inputs(x, weights)
        out = self.down(ops.glu(self.gate(each, ids), self.up(each, ids)), ids)
        return nn.sum_slots(out) + self.shared.forward(x)


class ExpertLayer(SparseLayer):
    attention = nn.Part(Llama4Attention)
    mlp = nn.Part(SparseMLP)


class DenseLayer(PreNormLayer):
    attention = nn.Part(Llama4Attention)


def make_layer(scope: nn.Scope) -> PreNormLayer:
    """One block, with experts where its number says so."""
    o: Llama4Options = scope.options
    sparse = o.expert_period > 0 and (scope.block + 1) % o.expert_period == 0
    return ExpertLayer(scope) if sparse else DenseLayer(scope)


class Llama4Text(Decoder):
    architecture = "llama4"

    options: Llama4Options
    layers = nn.Blocks(make_layer, "n_layer")

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Llama4Options:
        o = read_llama(metadata, n_vocab)
        return _with_options(o, metadata)

    @property
    def cache_layers(self) -> tuple[LayerShape, ...]:
        """Layers with positions keep a chunk, the others everything."""
        o = self.options
        return tuple(
            replace(shape, chunk=None if rope is None else o.chunk)
            for shape, rope in zip(super().cache_layers, o.ropes, strict=True)
        )

    def temperature(self, positions: Tensor) -> Tensor | None:
        """For layers without positions; 1 below `temperature_floor - 1`."""
        o = self.options
        if not o.temperature_scale or None not in o.ropes:
            return None
        return nn.temperature(positions, o.temperature_scale, o.temperature_floor, offset=1)


def _with_options(o: Options, metadata: Metadata) -> Llama4Options:
    """Options that only Llama 4 has. llama.cpp's files lack most keys; the defaults are its hard-coded values."""
    # llama.cpp writes a window of 0 for relatives in which all layers have positions and see everything.
    plain = metadata.u32("attention.sliding_window", None) == 0
    period = 0 if plain else metadata.u32("no_rope_interval", 4)
    tuned = not plain and metadata.bool("attention.temperature_tuning", True)
    options = Llama4Options(
        **vars(o),
        chunk=0 if plain else metadata.u32("attention.chunk_size", 8192),
        expert_period=metadata.u32("interleave_moe_layer_step", 1) if o.n_expert else 0,
        qk_norm=metadata.bool("use_qk_norm", o.n_expert != MAVERICK_EXPERTS),
        temperature_scale=metadata.f32("attention.scale", 0.1) if tuned else 0.0,
        temperature_floor=metadata.u32("attention.floor_scale", 8192),
    )
    if options.temperature_floor < 1:
        raise ModelFormatError(f"attention.floor_scale is 1 or more, got {options.temperature_floor}")
    ropes = tuple(None if period and (i + 1) % period == 0 else o.rope for i in range(o.n_layer))
    return replace(options, chunk=options.chunk or None, ropes=ropes)
