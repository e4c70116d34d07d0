"""Kimi Linear -> `general.architecture` = kimi-linear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ollama_engine.convert.architecture import COMMON_RENAMES, Architecture, Key, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import (
    ATTN_NORM,
    BLOCK,
    EMBEDDING,
    FFN_NORM,
    LAYER,
    MLP,
    OUTPUT,
    OUTPUT_NORM,
    n_dense,
    only,
)
from ollama_engine.convert.decoder import sizes as decoder_sizes
from ollama_engine.convert.keys import require
from ollama_engine.convert.latent_attention import LATENT, WIDE, latent_keys, latent_sizes
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.ml.gguf.gating import SIGMOID

__all__ = ["ARCHITECTURES"]

SELF = LAYER + "self_attn."
MIXTURE = LAYER + "block_sparse_moe."


def _attends(config: Config) -> list[bool]:
    """Whether each layer has latent attention. Published files count from 1."""
    n_layer = config.whole("num_hidden_layers")
    types, full = config.get("layer_types"), config.mapping("linear_attn_config").get("full_attn_layers")
    if isinstance(types, list) and len(types) == n_layer:
        return [kind == "full_attention" for kind in types]
    if not isinstance(full, list):
        raise config.wrong(("linear_attn_config", "layer_types"), "which layers have attention", types)
    return [i + 1 in full for i in range(n_layer)]


def _linear(config: Config, published: str, name: str) -> int:
    """A size of delta attention, in the published form or in transformers'."""
    return int(config.mapping("linear_attn_config").get(published, 0)) or config.whole(name)


def _sizes(config: Config) -> dict[str, int]:
    plain = decoder_sizes(config)
    n_head, key_dim = plain["n_head"], _linear(config, "head_dim", "linear_head_dim")
    if _linear(config, "num_heads", "linear_num_heads") != n_head:
        raise UnsupportedModelError(f"{config.home}: delta attention has as many heads as the other, {n_head}, in GGUF")
    return plain | latent_sizes(config, n_head) | {
        "key_dim": key_dim, "delta_size": n_head * key_dim,
        "n_taps": _linear(config, "short_conv_kernel_size", "linear_conv_kernel_dim"),
        "n_ff_shexp": plain["n_ff_exp"] * config.whole("num_shared_experts", "n_shared_experts"),
    }  # fmt: skip


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"q_lora_rank": None, "num_expert_group": 1, "n_group": 1, "topk_group": 1, "hidden_act": "silu"})
    require(config, {"moe_router_activation_func": "sigmoid", "moe_layer_freq": 1, "moe_renormalize": True})
    require(config, {"mla_use_nope": True})
    return {
        "attention.head_count_kv": [int(attends) for attends in _attends(config)],
        **latent_keys(sizes),
        "ssm.conv_kernel": sizes["n_taps"],
        "kda.head_dim": sizes["key_dim"],
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_count": config.whole("num_shared_experts", "n_shared_experts"),
        "expert_weights_scale": float(config.number("routed_scaling_factor", default=1.0)),
        "expert_gating_func": SIGMOID,
        "leading_dense_block_count": n_dense(config, 1),
    }


DECAY = Transform(
    lambda values, sizes: -np.exp(values.reshape(-1, 1)),
    lambda shape, sizes: (sizes["n_head"], 1),
    arithmetic=True, entrywise=False,
)  # fmt: skip
"""The logarithm of a decay becomes the decay, below 0."""


def _convolution(part: str) -> TensorMap:
    return TensorMap(f"{BLOCK}ssm_conv1d_{part}.weight", f"{SELF}{part}_conv1d.weight", ("delta_size", 1, "n_taps"))


DELTA = (
    *linear(BLOCK + "attn_q", SELF + "q_proj", "delta_size", "n_embd"),
    *linear(BLOCK + "attn_k", SELF + "k_proj", "delta_size", "n_embd"),
    *linear(BLOCK + "attn_v", SELF + "v_proj", "delta_size", "n_embd"),
    _convolution("q"),
    _convolution("k"),
    _convolution("v"),
    *linear(BLOCK + "ssm_f_a", SELF + "f_a_proj", "key_dim", "n_embd"),
    *linear(BLOCK + "ssm_f_b", SELF + "f_b_proj", "delta_size", "key_dim"),
    TensorMap(BLOCK + "ssm_dt.bias", SELF + "dt_bias", ("delta_size",)),
    TensorMap(BLOCK + "ssm_a", SELF + "A_log", (1, 1, "n_head", 1), DECAY),
    *linear(BLOCK + "ssm_beta", SELF + "b_proj", "n_head", "n_embd"),
    *linear(BLOCK + "ssm_g_a", SELF + "g_a_proj", "key_dim", "n_embd"),
    *linear(BLOCK + "ssm_g_b", SELF + "g_b_proj", "delta_size", "key_dim"),
    TensorMap(BLOCK + "ssm_norm.weight", SELF + "o_norm.weight", ("key_dim",)),
    *linear(BLOCK + "attn_output", SELF + "o_proj", "n_embd", "delta_size"),
)
EXPERTS = (
    TensorMap(BLOCK + "ffn_gate_inp.weight", MIXTURE + "gate.weight", ("n_expert", "n_embd")),
    TensorMap(BLOCK + "exp_probs_b.bias", MIXTURE + "gate.e_score_correction_bias", ("n_expert",)),
    TensorMap(BLOCK + "ffn_gate_exps.weight", MIXTURE + "experts.{e}.w1.weight", ("n_ff_exp", "n_embd")),
    TensorMap(BLOCK + "ffn_up_exps.weight", MIXTURE + "experts.{e}.w3.weight", ("n_ff_exp", "n_embd")),
    TensorMap(BLOCK + "ffn_down_exps.weight", MIXTURE + "experts.{e}.w2.weight", ("n_embd", "n_ff_exp")),
    *linear(BLOCK + "ffn_gate_shexp", MIXTURE + "shared_experts.gate_proj", "n_ff_shexp", "n_embd"),
    *linear(BLOCK + "ffn_up_shexp", MIXTURE + "shared_experts.up_proj", "n_ff_shexp", "n_embd"),
    *linear(BLOCK + "ffn_down_shexp", MIXTURE + "shared_experts.down_proj", "n_embd", "n_ff_shexp"),
)


ARCHITECTURES = (
    Architecture(
        name="kimi-linear",
        classes=("KimiLinearForCausalLM",),
        sizes=_sizes,
        keys=(
            Key("block_count", "u32", ("num_hidden_layers",)),
            Key("context_length", "u32", ("model_max_length", "max_position_embeddings")),
            Key("embedding_length", "u32", ("hidden_size",)),
            Key("feed_forward_length", "u32", ("intermediate_size",)),
            Key("attention.head_count", "u32", ("num_attention_heads",)),
            Key("attention.layer_norm_rms_epsilon", "f32", ("rms_norm_eps",)),
            Key("expert_count", "u32", ("num_experts", "num_local_experts")),
            Key("expert_used_count", "u32", ("num_experts_per_token", "num_experts_per_tok")),
        ),
        defaults={"rms_norm_eps": 1e-5},
        # transformers saves blocks without experts under the name of the others.
        renames=(*COMMON_RENAMES, (r"\.block_sparse_moe\.(?=(?:gate|up|down)_proj\.)", ".mlp.")),
        more_keys=_keys,
        tensors=(
            EMBEDDING,
            ATTN_NORM,
            *only(lambda config, i: not _attends(config)[i], *DELTA),
            *only(lambda config, i: _attends(config)[i], *WIDE, *LATENT),
            FFN_NORM,
            *only(lambda config, i: i < n_dense(config, 1), *MLP),
            *only(lambda config, i: i >= n_dense(config, 1), *EXPERTS),
            *OUTPUT_NORM,
            OUTPUT,
        ),
        always_f32=(r"ssm_conv1d_[qkv]\.weight$",),
        pre_names=("kimi-k2",),
    ),
)
