"""DeepSeek V2, V3 and R1, Kimi K2, GLM-4.7-Flash -> `general.architecture` = deepseek2; Mistral Small 4 -> mistral4."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    experts,
    has_experts,
    is_dense,
    n_dense,
    only,
)
from ollama_engine.convert.decoder import sizes as decoder_sizes
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.latent_attention import (
    LATENT,
    NARROW,
    WIDE,
    latent_keys,
    latent_sizes,
    only_narrow,
)
from ollama_engine.convert.mistral3 import VISION
from ollama_engine.convert.next_tokens import HEAD, N_NEXT, behind, counted_on, next_token_keys, placed_behind
from ollama_engine.convert.rope import rope_keys, rope_parameters
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import UnsupportedModelError
from ollama_engine.ml.gguf.gating import SIGMOID, SOFTMAX

__all__ = ["ARCHITECTURES"]

SHARED = LAYER + "mlp.shared_experts."


def _sizes(config: Config) -> dict[str, int]:
    plain = decoder_sizes(config)
    n_shared_experts = config.whole("n_shared_experts")
    return {
        **plain, **latent_sizes(config, plain["n_head"]), "n_expert": config.whole("n_routed_experts"),
        "n_ff_shexp": plain["n_ff_exp"] * n_shared_experts, "n_shared_experts": n_shared_experts,
        "n_embd_twice": 2 * plain["n_embd"], N_NEXT: config.whole(N_NEXT, default=0),
    }  # fmt: skip


def _yarn_keys(config: Config) -> Mapping[str, Any]:
    """How scores grow where positions are stretched, in llama.cpp's form: a tenth of the number of the config."""
    rope = rope_parameters(config)
    growth = rope.get("mscale_all_dim")
    if rope["rope_type"] != "yarn" or not growth:
        return {}
    if rope.get("mscale", growth) != growth:
        raise UnsupportedModelError(
            f"{config.home}: mscale {rope['mscale']} differs from mscale_all_dim {growth}, which GGUF has no key for"
        )
    return {"rope.scaling.yarn_log_multiplier": 0.1 * float(growth)}


def _keys(config: Config, sizes: Sizes, gating: int) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu", "moe_layer_freq": 1, "attention_bias": False, "rope_interleave": True})
    require(config, {"scoring_func": "sigmoid" if gating == SIGMOID else "softmax"})
    n_group = config.whole("n_group", default=1)
    if gating == SOFTMAX and config.get("topk_method") == "greedy":
        n_group = 1
    groups = {"expert_group_count": n_group, "expert_group_used_count": config.whole("topk_group", default=1)}
    return {
        **rope_keys(config, mscale=False),
        **_yarn_keys(config),
        **latent_keys(sizes),
        **next_token_keys(sizes),
        "attention.head_count_kv": 1,
        "leading_dense_block_count": n_dense(config),
        "expert_count": sizes["n_expert"],
        "expert_used_count": config.whole("num_experts_per_tok"),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_count": sizes["n_shared_experts"],
        "expert_gating_func": gating,
        "expert_weights_scale": float(config.number("routed_scaling_factor", default=1.0)),
        "expert_weights_norm": bool(config.get("norm_topk_prob", default=gating == SIGMOID)),
        **(groups if n_group > 1 else {}),
    }


def _v2_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"norm_topk_prob": False})
    return _keys(config, sizes, SOFTMAX)


def _v3_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"topk_method": "noaux_tc"})
    return _keys(config, sizes, SIGMOID)


def _mistral4_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    rope = rope_parameters(config)
    beta = rope.get("llama_4_scaling_beta")
    sharper: dict[str, Any] = {}
    if beta:
        sharper = {
            "attention.temperature_scale": float(beta),
            "attention.temperature_length": int(rope["original_max_position_embeddings"]),
        }
    normalizes = bool(config.get("norm_topk_prob", default=True))
    return {**_keys(config, sizes, SOFTMAX), "expert_weights_norm": normalizes, **sharper}


SHARED_EXPERTS = (
    *linear(BLOCK + "ffn_gate_shexp", SHARED + "gate_proj", "n_ff_shexp", "n_embd"),
    *linear(BLOCK + "ffn_up_shexp", SHARED + "up_proj", "n_ff_shexp", "n_embd"),
    *linear(BLOCK + "ffn_down_shexp", SHARED + "down_proj", "n_embd", "n_ff_shexp"),
)
MIXTURE = (*experts(has_experts), *only(has_experts, *SHARED_EXPERTS))
CORRECTION = TensorMap(
    BLOCK + "exp_probs_b.bias", LAYER + "mlp.gate.e_score_correction_bias", ("n_expert",), applies=has_experts
)

NEXT = (
    *HEAD,
    *placed_behind((ATTN_NORM, *LATENT, FFN_NORM, *MIXTURE, CORRECTION), behind),
    *only_narrow(placed_behind(NARROW, behind), narrow=True),
    *only_narrow(placed_behind(WIDE, behind), narrow=False),
)


def _architecture(
    name: str,
    class_name: str,
    more_keys: Callable[[Config, Sizes], Mapping[str, Any]],
    pre_names: tuple[str, ...],
    *more: TensorMap,
    next_tokens: tuple[TensorMap, ...] = (),
) -> Architecture:
    return Architecture(
        llama3_rope=True,
        name=name,
        classes=(class_name,),
        sizes=_sizes,
        keys=tuple(key for key in DECODER_KEYS if not key.name.startswith("expert_")),
        more_keys=more_keys,
        tensors=(
            EMBEDDING,
            ATTN_NORM,
            *only_narrow(NARROW, narrow=True),
            *only_narrow(WIDE, narrow=False),
            *LATENT,
            FFN_NORM,
            *only(is_dense, *MLP),
            *MIXTURE,
            *more,
            *OUTPUT_NORM,
            OUTPUT,
            *next_tokens,
        ),
        told_by_names=counted_on if next_tokens else lambda names: {},
        pre_names=pre_names,
    )


def _is_mistral4(config: Config) -> bool:
    """Whether the text part is that of Mistral Small 4; its class is Mistral Small 3's, as published."""
    return bool(config.get("model_type") == "mistral4")


MISTRAL4 = _architecture("mistral4", "Mistral4ForCausalLM", _mistral4_keys, ("tekken",))
ARCHITECTURES = (
    _architecture("deepseek2", "DeepseekV2ForCausalLM", _v2_keys, ("deepseek-llm",)),
    _architecture(
        "deepseek2", "DeepseekV3ForCausalLM", _v3_keys, ("deepseek-v3", "kimi-k2"), CORRECTION, next_tokens=NEXT
    ),
    _architecture("deepseek2", "Glm4MoeLiteForCausalLM", _v3_keys, ("glm4",), CORRECTION, next_tokens=NEXT),
    replace(
        MISTRAL4,
        classes=("Mistral3ForConditionalGeneration",),
        fits=_is_mistral4,
        unsupported={VISION.sources: "images"},
    ),
    MISTRAL4,
)
