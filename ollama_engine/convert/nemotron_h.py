"""Nemotron-H and Nemotron 3 -> `general.architecture` = nemotron_h, nemotron_h_moe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import BLOCK, LAYER, OUTPUT, norm
from ollama_engine.convert.decoder import sizes as decoder_sizes
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.next_tokens import N_NEXT, NEXT_TOKENS, counted, next_token_keys, placed_behind
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.state_space import state_space, state_space_keys, state_space_sizes
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

KINDS = {
    "M": "mamba", "mamba": "mamba", "linear_attention": "mamba", "*": "attention", "attention": "attention",
    "full_attention": "attention", "-": "mlp", "mlp": "mlp", "E": "moe", "moe": "moe",
}  # fmt: skip
"""What a layer is called in `hybrid_override_pattern` and in the two forms of `layers_block_type`."""

MIXER = LAYER + "mixer."


def _kinds(config: Config) -> list[str]:
    """What each layer is: mamba, attention, mlp or moe."""
    names = ("layers_block_type", "layer_types", "hybrid_override_pattern")
    stored = config.get(*names)
    n_layer = config.whole("num_hidden_layers", default=0)
    if not isinstance(stored, (list, str)) or not stored or not all(kind in KINDS for kind in stored):
        raise config.wrong(names, f"a list or pattern of {', '.join(KINDS)}", stored)
    if n_layer not in (0, len(stored)):
        raise config.wrong(names, f"{n_layer} layers (num_hidden_layers)", stored)
    return [KINDS[kind] for kind in stored]


def _only(kind: str, *tensors: TensorMap) -> tuple[TensorMap, ...]:
    def applies(config: Config, layer: int) -> bool:
        return _kinds(config)[layer] == kind

    return tuple(replace(tensor, applies=applies) for tensor in tensors)


ATTENTION = (
    *linear(BLOCK + "attn_q", MIXER + "q_proj", "q_size", "n_embd"),
    *linear(BLOCK + "attn_k", MIXER + "k_proj", "kv_size", "n_embd"),
    *linear(BLOCK + "attn_v", MIXER + "v_proj", "kv_size", "n_embd"),
    *linear(BLOCK + "attn_output", MIXER + "o_proj", "n_embd", "q_size"),
)
MLP = (
    *linear(BLOCK + "ffn_up", MIXER + "up_proj", "n_ff", "n_embd"),
    *linear(BLOCK + "ffn_down", MIXER + "down_proj", "n_embd", "n_ff"),
)
UP, DOWN = ("n_ff_exp", "n_expert_in"), ("n_expert_in", "n_ff_exp")
EXPERTS = (
    TensorMap(BLOCK + "ffn_gate_inp.weight", MIXER + "gate.weight", ("n_expert", "n_embd")),
    TensorMap(BLOCK + "exp_probs_b.bias", MIXER + "gate.e_score_correction_bias", ("n_expert",)),
    TensorMap(BLOCK + "ffn_up_exps.weight", MIXER + "experts.{e}.up_proj.weight", UP),
    TensorMap(BLOCK + "ffn_down_exps.weight", MIXER + "experts.{e}.down_proj.weight", DOWN),
    *linear(BLOCK + "ffn_up_shexp", MIXER + "shared_experts.up_proj", "n_ff_shexp", "n_embd"),
    *linear(BLOCK + "ffn_down_shexp", MIXER + "shared_experts.down_proj", "n_embd", "n_ff_shexp"),
)
LATENT = (
    *linear(BLOCK + "ffn_latent_down", MIXER + "fc1_latent_proj", "n_expert_in", "n_embd"),
    *linear(BLOCK + "ffn_latent_up", MIXER + "fc2_latent_proj", "n_embd", "n_expert_in"),
)


NEXT_ATTENTION, NEXT_EXPERTS = "mtp.layers.0.", "mtp.layers.1."
"""The two layers of the block that predicts the token after the next."""


def _is_latent(config: Config, layer: int) -> bool:
    return _kinds(config)[layer] == "moe" and _has_latent(config, layer)


def _has_latent(config: Config, layer: int) -> bool:
    return config.get("moe_latent_size") is not None


NEXT = (
    *placed_behind(
        (
            TensorMap(BLOCK + "nextn.eh_proj.weight", LAYER + "eh_proj.weight", ("n_embd", "n_embd_twice")),
            norm(BLOCK + "nextn.enorm", LAYER + "enorm"),
            norm(BLOCK + "nextn.hnorm", LAYER + "hnorm"),
            norm(BLOCK + "attn_norm", LAYER + "norm"),
            *ATTENTION,
        ),
        lambda name: name.replace(LAYER, NEXT_ATTENTION),
    ),
    *placed_behind(
        (
            norm(BLOCK + "post_attention_norm", LAYER + "norm"),
            *EXPERTS,
            norm(BLOCK + "nextn.shared_head_norm", LAYER + "final_layernorm"),
        ),
        lambda name: name.replace(LAYER, NEXT_EXPERTS),
    ),
    *(
        replace(tensor, applies=_has_latent)
        for tensor in placed_behind(LATENT, lambda name: name.replace(LAYER, NEXT_EXPERTS))
    ),
)


def _sizes(config: Config) -> dict[str, int]:
    plain = decoder_sizes(config.completed({"num_hidden_layers": len(_kinds(config))}))
    return {
        **plain,
        **state_space_sizes(
            config.whole("mamba_num_heads"), config.whole("mamba_head_dim"), config.whole("n_groups"),
            config.whole("ssm_state_size"), config.whole("conv_kernel"),
        ),
        "n_expert": config.whole("n_routed_experts", default=0),
        "n_expert_in": config.whole("moe_latent_size", default=plain["n_embd"]),
        "n_ff_shexp": config.whole("moe_shared_expert_intermediate_size", default=0),
        "n_embd_twice": 2 * plain["n_embd"],
        N_NEXT: config.whole(N_NEXT, default=0),
    }  # fmt: skip


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    kinds, limit = _kinds(config), config.get("time_step_limit", default=[0.0])
    require(config, {"mlp_hidden_act": "relu2", "mamba_hidden_act": "silu"})
    if limit[0] != 0:
        raise UnsupportedModelError(f"{config.home}: time_step_limit is {limit}, which GGUF has no key for")
    eps = config.number("layer_norm_epsilon", "rms_norm_eps")
    return {
        "block_count": len(kinds),
        "attention.head_count_kv": [sizes["n_head_kv"] if kind == "attention" else 0 for kind in kinds],
        "attention.key_length": sizes["head_dim"],
        "attention.value_length": sizes["head_dim"],
        # llama.cpp asks for the first, though all norms are of the second kind.
        "attention.layer_norm_epsilon": eps,
        "attention.layer_norm_rms_epsilon": eps,
        "feed_forward_length": [sizes["n_ff"] if kind == "mlp" else 0 for kind in kinds],
        **state_space_keys(sizes),
    }


def _expert_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    kinds = _kinds(config)
    require(config, {"n_group": 1, "topk_group": 1, "n_shared_experts": 1})
    if "mlp" in kinds:
        raise UnsupportedModelError(f"{config.home}: some layers are dense and others have experts")
    latent, next_ones = config.get("moe_latent_size"), sizes[N_NEXT]
    usual = _keys(config, sizes)
    return {
        **usual,
        **next_token_keys(sizes),
        "attention.head_count_kv": usual["attention.head_count_kv"] + [sizes["n_head_kv"]] * next_ones,
        "feed_forward_length": [sizes["n_ff_exp"] if kind == "moe" else 0 for kind in (*kinds, *["moe"] * next_ones)],
        "expert_count": sizes["n_expert"],
        "expert_used_count": config.whole("num_experts_per_tok"),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_feed_forward_length": sizes["n_ff_shexp"],
        "expert_shared_count": 1,
        "expert_weights_norm": bool(config.get("norm_topk_prob", default=True)),
        "expert_weights_scale": float(config.number("routed_scaling_factor", default=1.0)),
        "expert_group_count": 1,
        **({} if latent is None else {"moe_latent_size": sizes["n_expert_in"]}),
    }


def _architecture(
    name: str,
    fits: Callable[[Config], bool],
    more_keys: Callable[[Config, Sizes], Mapping[str, Any]],
    *feed_forward: TensorMap,
) -> Architecture:
    return Architecture(
        name=name,
        classes=("NemotronHForCausalLM",),
        fits=fits,
        sizes=_sizes,
        keys=tuple(replace(key, required=False) for key in DECODER_KEYS if not key.name.startswith("expert_")),
        more_keys=more_keys,
        tensors=(
            TensorMap("token_embd.weight", "model.embeddings.weight", ("n_vocab", "n_embd")),
            norm(BLOCK + "attn_norm", LAYER + "norm"),
            *_only("mamba", *state_space(MIXER)),
            *_only("attention", *ATTENTION),
            *feed_forward,
            norm("output_norm", "model.norm_f"),
            OUTPUT,
        ),
        spare=NEXT_TOKENS,
        told_by_names=counted(r"\bmtp\.layers\.(\d+)\.eh_proj\."),
        renames=((r"^(?:model\.)?backbone\.", "model."), (r"^model\.mtp\.", "mtp.")),
        pre_names=("qwen2",),
    )


def _has_experts(config: Config) -> bool:
    return "moe" in _kinds(config)


ARCHITECTURES = (
    _architecture("nemotron_h", lambda config: not _has_experts(config), _keys, *_only("mlp", *MLP)),
    _architecture(
        "nemotron_h_moe", _has_experts, _expert_keys,
        *_only("moe", *EXPERTS), *(replace(tensor, applies=_is_latent) for tensor in LATENT), *NEXT,
    ),
)  # fmt: skip
