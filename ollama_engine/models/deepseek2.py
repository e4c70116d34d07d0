"""DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash (`general.architecture` = deepseek2), and Mistral Small 4 (mistral4).

All blocks have latent attention, and all but the first ones experts, some of which all tokens share. V2 chooses experts
by a softmax; from V3 on sigmoids do, with a correction. Large models first choose groups of experts, each for a node of
the cluster that it was trained on. Mistral Small 4 has V2's softmax, and attention that grows sharper.
Sources: DeepSeek-V2 (Liu et al. 2024, arXiv:2405.04434), DeepSeek-V3 (Liu et al. 2024, arXiv:2412.19437).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml import ops
from ollama_engine.ml.gguf.gating import SIGMOID, SOFTMAX
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.ml.graph.tensor import Tensor
from ollama_engine.models.decoder import PreNormLayer, SparseLayer
from ollama_engine.models.experts import SparseMLP
from ollama_engine.models.latent_attention import (
    LatentDecoder,
    LatentOptions,
    make_attention,
    read_latent,
)
from ollama_engine.models.options import Options

GLM_LAYERS, GLM_VOCABULARY = (47, 48), 154880
"""GLM-4.7-Flash, whose first files do not say that it has sigmoids."""


@dataclass(frozen=True, kw_only=True)
class DeepSeekOptions(LatentOptions):
    sigmoids: bool
    """Whether sigmoids choose experts, and not a softmax."""
    n_group: int
    """Groups of experts; 1: all are one."""
    n_group_used: int
    n_group_best: int
    """Experts by which a group is judged."""
    temperature_scale: float = 0.0
    """How fast scores of attention grow sharper; 0: they do not."""
    temperature_period: int = 0
    """Positions below this have scores as they are."""


class GroupedMLP(SparseMLP):
    """Experts that may be chosen by groups, and with a correction."""

    correction = nn.Vector("exp_probs_b.bias", "n_expert", alt="exp_probs_b", optional=True)

    def route(self, x: Tensor, o: Options) -> tuple[Tensor, Tensor]:
        assert isinstance(o, DeepSeekOptions)
        logits = self.router(x)
        scores = ops.unary(logits, "sigmoid") if o.sigmoids else ops.softmax(logits)
        choosing = scores + self.correction.tensor if self.correction else scores
        if o.n_group > 1:
            choosing = nn.of_best_groups(choosing, o.n_group, o.n_group_used, o.n_group_best)
        return nn.route_scored(scores, choosing, o.n_expert_used, normalize=o.normalize_experts, scale=o.expert_scale)


class DenseLayer(PreNormLayer):
    attention = nn.Part(make_attention)


class GroupedLayer(SparseLayer):
    attention = nn.Part(make_attention)
    mlp = nn.Part(GroupedMLP)


def make_layer(scope: nn.Scope) -> PreNormLayer:
    """One block."""
    return (DenseLayer if scope.block < scope.options.n_dense else GroupedLayer)(scope)


class DeepSeek2(LatentDecoder):
    options: DeepSeekOptions
    architecture = "deepseek2"

    layers = nn.Blocks(make_layer, "n_layer")
    next_block = GroupedLayer

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> DeepSeekOptions:
        o = read(metadata, n_vocab)
        # V2 judges a group by its best expert. llama.cpp takes the sum of two, as V3 does.
        return o if o.sigmoids else replace(o, n_group_best=1)

    def temperature(self, positions: Tensor) -> Tensor | None:
        o = self.options
        return nn.temperature(positions, o.temperature_scale, o.temperature_period) if o.temperature_scale else None


class Mistral4(DeepSeek2):
    architecture = "mistral4"

    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> DeepSeekOptions:
        return read(metadata, n_vocab)


def read(metadata: Metadata, n_vocab: int) -> DeepSeekOptions:
    """The options of all."""
    fields = read_latent(metadata, n_vocab)
    rope, sharper = read_yarn(metadata, fields["n_shared"])
    fields["attention_scale"] *= sharper
    scale = metadata.f32("attention.temperature_scale", 0.0)
    period = metadata.u32("attention.temperature_length", 0) or metadata.u32("rope.scaling.original_context_length", 0)
    if scale and not period:
        raise ModelFormatError(
            f"attention.temperature_scale is {scale:g}, but no attention.temperature_length says from where on"
        )
    return DeepSeekOptions(
        **fields, **_routing(metadata, fields["n_expert"], fields["n_expert_used"], fields["n_layer"], n_vocab),
        rope=rope, ropes=(rope,) * fields["n_layer"], n_narrow=metadata.u32("attention.q_lora_rank", 0),
        temperature_scale=scale, temperature_period=period,
    )  # fmt: skip


def read_yarn(metadata: Metadata, n_dims: int) -> tuple[nn.Rope, float]:
    """The rotation, and what scores are multiplied by for it.

    Where positions are stretched, either queries and keys grow, or scores do: by the square of a number that the file
    has as a tenth of DeepSeek's `mscale_all_dim`.
    """
    rope = nn.read_rope(metadata, n_dims, "norm")
    growth = metadata.f32("rope.scaling.yarn_log_multiplier", 0.0)
    if not rope.ext_factor or not growth:
        return rope, 1.0
    if "rope.scaling.yarn_attn_factor" not in metadata:
        rope = replace(rope, attn_factor=rope.attn_factor / rope.yarn_magnitude)
    return rope, (1 + growth * math.log(1 / rope.scale)) ** 2


def _routing(metadata: Metadata, n_expert: int, n_used: int, n_layer: int, n_vocab: int) -> dict[str, Any]:
    """The fields about how experts are chosen. Raises ModelFormatError."""
    is_glm = n_layer in GLM_LAYERS and n_vocab == GLM_VOCABULARY
    gating = metadata.u32("expert_gating_func", 0) or (SIGMOID if is_glm else SOFTMAX)
    if gating not in (SOFTMAX, SIGMOID):
        raise ModelFormatError(f"expert_gating_func {gating} is {SOFTMAX} (softmax) or {SIGMOID} (sigmoid)")
    n_group = metadata.u32("expert_group_count", 1) or 1
    n_group_used = metadata.u32("expert_group_used_count", 1) or 1
    each = n_expert // n_group
    if n_group > 1 and (n_expert % n_group or each < 2 or n_group_used > n_group or n_used > n_group_used * each):
        raise ModelFormatError(
            f"expert_group_count {n_group} divides expert_count {n_expert} into groups of at least 2, and the "
            f"expert_used_count {n_used} experts are of expert_group_used_count {n_group_used} groups"
        )
    return {
        "sigmoids": gating == SIGMOID, "n_group": n_group, "n_group_used": n_group_used, "n_group_best": 2,
        "normalize_experts": metadata.bool("expert_weights_norm", False),
    }  # fmt: skip
