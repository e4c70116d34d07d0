"""Granite 2 to 4, dense, with experts and hybrid -> `general.architecture` = granite, granitemoe, granitehybrid.

Models of the hybrid class all of whose layers have attention are granite or granitemoe, as in llama.cpp's converter.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import (
    ATTN_NORM,
    BLOCK,
    EMBEDDING,
    FFN_NORM,
    LAYER,
    MLP,
    OUTPUT,
    OUTPUT_NORM,
    decoder,
    only,
    rope_and_size,
)
from ollama_engine.convert.decoder import sizes as decoder_sizes
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.state_space import state_space, state_space_keys, state_space_sizes
from ollama_engine.convert.transforms import half, pair_heads, row_part
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

ATTENTION_TYPES = ("attention", "full_attention")
STATE_SPACE_TYPES = ("mamba", "linear_attention")


def _attends(config: Config) -> list[bool]:
    """Whether each layer has attention; the others are state-space layers."""
    n_layer, types = config.whole("num_hidden_layers"), config.get("layer_types", "layers_block_type")
    known = (*ATTENTION_TYPES, *STATE_SPACE_TYPES)
    if not isinstance(types, list) or len(types) != n_layer or not all(t in known for t in types):
        raise config.wrong(("layer_types",), f"{n_layer} of {', '.join(known)}", types)
    return [t in ATTENTION_TYPES for t in types]


def _has_experts(config: Config, layer: int) -> bool:
    return config.whole("num_local_experts", default=0) > 0


def _has_shared(config: Config, layer: int) -> bool:
    return _has_experts(config, layer) and config.whole("shared_intermediate_size", default=0) > 0


ATTENTION = (
    *linear(BLOCK + "attn_q", LAYER + "self_attn.q_proj", "q_size", "n_embd", pair_heads("n_head")),
    *linear(BLOCK + "attn_k", LAYER + "self_attn.k_proj", "kv_size", "n_embd", pair_heads("n_head_kv")),
    *linear(BLOCK + "attn_v", LAYER + "self_attn.v_proj", "kv_size", "n_embd"),
    *linear(BLOCK + "attn_output", LAYER + "self_attn.o_proj", "n_embd", "q_size"),
)
MOE, SHARED = LAYER + "block_sparse_moe.", LAYER + "shared_mlp."
GATE_UP = ("n_expert", "n_ff_exp_twice", "n_embd")
EXPERTS = (
    TensorMap(BLOCK + "ffn_gate_inp.weight", MOE + "router.layer.weight", ("n_expert", "n_embd")),
    TensorMap(BLOCK + "ffn_gate_exps.weight", MOE + "input_linear.weight", GATE_UP, half(0, 1)),
    TensorMap(BLOCK + "ffn_up_exps.weight", MOE + "input_linear.weight", GATE_UP, half(1, 1)),
    TensorMap(BLOCK + "ffn_down_exps.weight", MOE + "output_linear.weight", ("n_expert", "n_embd", "n_ff_exp")),
)


def _shared(suffix: str) -> tuple[TensorMap, ...]:
    """The part that all tokens share, which is the whole feed-forward part of a model without experts."""
    source, into = SHARED + "input_linear.weight", ("n_ff_shexp_twice", "n_embd")
    return (
        TensorMap(f"{BLOCK}ffn_gate{suffix}.weight", source, into, row_part(0, 2)),
        TensorMap(f"{BLOCK}ffn_up{suffix}.weight", source, into, row_part(1, 2)),
        TensorMap(f"{BLOCK}ffn_down{suffix}.weight", SHARED + "output_linear.weight", ("n_embd", "n_ff_shexp")),
    )


def _sizes(config: Config) -> dict[str, int]:
    plain, shared = decoder_sizes(config), config.whole("shared_intermediate_size", default=0)
    hidden = config.whole("intermediate_size")
    return {
        **plain, "n_ff_exp": hidden, "n_ff_exp_twice": 2 * hidden, "n_ff_shexp": shared, "n_ff_shexp_twice": 2 * shared,
    }  # fmt: skip


def _hybrid_sizes(config: Config) -> dict[str, int]:
    plain = _sizes(config)
    n_heads, d_inner = config.whole("mamba_n_heads"), config.whole("mamba_expand", default=2) * plain["n_embd"]
    if n_heads < 1 or d_inner % n_heads:
        raise config.wrong(("mamba_n_heads",), f"a divisor of {d_inner}", n_heads)
    state = state_space_sizes(
        n_heads, d_inner // n_heads, config.whole("mamba_n_groups", default=1), config.whole("mamba_d_state"),
        config.whole("mamba_d_conv", default=4),
    )  # fmt: skip
    return {**plain, **state}


def _scales(config: Config) -> dict[str, float]:
    return {
        "attention.scale": float(config.number("attention_multiplier", default=1.0)),
        "embedding_scale": float(config.number("embedding_multiplier", default=1.0)),
        "residual_scale": float(config.number("residual_multiplier", default=1.0)),
        "logit_scale": float(config.number("logits_scaling", default=1.0)),
    }


def _rotates(config: Config) -> bool:
    """Whether a model of the hybrid class has positions."""
    position = config.get("position_embedding_type")
    if position not in (None, "nope", "rope"):
        raise UnsupportedModelError(f"{config.home}: position_embedding_type is {position!r}, known are nope and rope")
    return bool(position == "rope")


def _plain_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu"})
    shared = {"expert_shared_feed_forward_length": sizes["n_ff_shexp"]} if _has_shared(config, 0) else {}
    return {**rope_and_size(config, sizes), **_scales(config), **shared}


def _attending_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    sparse = sizes["n_expert"] > 0
    return {
        **_plain_keys(config, sizes),
        "feed_forward_length": sizes["n_ff_exp" if sparse else "n_ff_shexp"],
        "rope.scaling.finetuned": _rotates(config),
        **({} if sparse else {"expert_used_count": 0}),
    }


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu"})
    sparse = sizes["n_expert"] > 0
    return {
        **rope_and_size(config, sizes),
        **state_space_keys(sizes),
        "feed_forward_length": sizes["n_ff_exp" if sparse else "n_ff_shexp"],
        "attention.head_count_kv": [sizes["n_head_kv"] if attends else 0 for attends in _attends(config)],
        "attention.key_length": sizes["head_dim"],
        "attention.value_length": sizes["head_dim"],
        # llama.cpp's switch for rotation in this architecture.
        "rope.scaling.finetuned": _rotates(config),
        **_scales(config),
        **({"expert_shared_feed_forward_length": sizes["n_ff_shexp"]} if sparse else {"expert_used_count": 0}),
    }


FEED_FORWARD = (
    *only(_has_experts, *EXPERTS),
    *only(_has_shared, *_shared("_shexp")),
    *only(lambda config, i: not _has_experts(config, i), *_shared("")),
)


def _attending(name: str, *, sparse: bool) -> Architecture:
    """Models of the hybrid class all of whose layers have attention."""
    made = decoder(
        name,
        ("GraniteMoeHybridForCausalLM",),
        (ATTN_NORM, *ATTENTION, FFN_NORM, *FEED_FORWARD),
        sizes=_sizes,
        more_keys=_attending_keys,
        pre_names=("dbrx",),
    )
    return replace(made, fits=lambda config: all(_attends(config)) and _has_experts(config, 0) == sparse)


ARCHITECTURES = (
    decoder(
        "granite",
        ("GraniteForCausalLM",),
        (ATTN_NORM, *ATTENTION, FFN_NORM, *MLP),
        sizes=_sizes,
        more_keys=_plain_keys,
        pre_names=("refact",),
    ),
    decoder(
        "granitemoe",
        ("GraniteMoeForCausalLM", "GraniteMoeSharedForCausalLM"),
        (ATTN_NORM, *ATTENTION, FFN_NORM, *EXPERTS, *only(_has_shared, *_shared("_shexp"))),
        sizes=_sizes,
        more_keys=_plain_keys,
        pre_names=("refact",),
    ),
    _attending("granite", sparse=False),
    _attending("granitemoe", sparse=True),
    Architecture(
        llama3_rope=True,
        name="granitehybrid",
        classes=("GraniteMoeHybridForCausalLM",),
        fits=lambda config: not all(_attends(config)),
        sizes=_hybrid_sizes,
        keys=DECODER_KEYS,
        more_keys=_keys,
        tensors=(
            EMBEDDING,
            ATTN_NORM,
            *only(lambda config, i: not _attends(config)[i], *state_space(LAYER + "mamba.")),
            *only(lambda config, i: _attends(config)[i], *ATTENTION),
            FFN_NORM,
            *FEED_FORWARD,
            *OUTPUT_NORM,
            OUTPUT,
        ),
        pre_names=("dbrx",),
    ),
)
