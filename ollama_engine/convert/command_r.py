"""Command R, Aya, Command R7B and North -> `general.architecture` = command-r, cohere2, cohere2moe.

Their checkpoints rotate neighbours already: no rows are moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes, TensorMap
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    LAYER,
    MLP,
    decoder,
    experts,
    has_experts,
    is_dense,
    layer_types,
    n_dense,
    only,
    rope_and_size,
    shared_expert,
    sizes,
)
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.source.folder import Config
from ollama_engine.ml.gguf.gating import CHOSEN, SIGMOID

__all__ = ["ARCHITECTURES"]

KEYS = (
    *(key for key in DECODER_KEYS if key.name != "context_length"),
    # max_position_embeddings of Command R is less than what it was trained for, which model_max_length tells.
    Key("context_length", "u32", ("model_max_length", "max_position_embeddings")),
    Key("vocab_size", "u32", ("vocab_size",)),
    Key("logit_scale", "f32", ("logit_scale",)),
)
QK_NORM = (
    TensorMap(BLOCK + "attn_q_norm.weight", LAYER + "self_attn.q_norm.weight", ("n_head", "head_dim"), optional=True),
    TensorMap(
        BLOCK + "attn_k_norm.weight", LAYER + "self_attn.k_norm.weight", ("n_head_kv", "head_dim"), optional=True
    ),
)


def _command_r_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    keys = rope_and_size(config, sizes)
    return keys if "rope.scaling.type" in keys else {**keys, "rope.scaling.type": "none"}


def _cohere2_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    period = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=4)
    return {
        **_command_r_keys(config, sizes),
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": layer_types(config, lambda i: (i + 1) % period != 0),
    }


def _has_shared(config: Config, layer: int) -> bool:
    return has_experts(config, layer) and config.whole("num_shared_experts", default=0) > 0


def _sparse_sizes(config: Config) -> dict[str, int]:
    plain = sizes(config)
    hidden = plain["n_ff"]
    return {
        **plain, "n_expert": config.whole("num_experts"), "n_ff_exp": hidden, "n_ff_exp_twice": 2 * hidden,
        "n_ff_shexp": hidden * config.whole("num_shared_experts", default=0),
        "n_ff": config.whole("prefix_dense_intermediate_size", default=hidden),
    }  # fmt: skip


def _sparse_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu", "shared_expert_combination_strategy": "average"})
    local = layer_types(config, lambda i: True)
    if config.get("layer_types") is None or config.whole("prefix_dense_sliding_window_pattern", default=1) != 1:
        # Whether the first blocks rotate depends on it.
        require(config, {"prefix_dense_sliding_window_pattern": 1})
    gating = config.get("expert_selection_fn", default="softmax")
    if gating not in ("sigmoid", "softmax"):
        raise config.wrong(("expert_selection_fn",), "sigmoid or softmax", gating)
    centered = config.get("rms_norm_eps") is None
    return {
        **_command_r_keys(config, sizes),
        "feed_forward_length": sizes["n_ff"],
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": local,
        ("attention.layer_norm_epsilon" if centered else "attention.layer_norm_rms_epsilon"): float(
            config.number("layer_norm_eps" if centered else "rms_norm_eps", default=1e-5)
        ),
        "leading_dense_block_count": n_dense(config),
        "expert_gating_func": SIGMOID if gating == "sigmoid" else CHOSEN,
        "expert_weights_norm": bool(config.get("norm_topk_prob", default=True)),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_count": config.whole("num_shared_experts", default=0),
        "expert_shared_feed_forward_length": sizes["n_ff_shexp"],
    }


ARCHITECTURES = (
    decoder(
        "cohere2moe",
        ("Cohere2MoeForCausalLM",),
        (
            ATTN_NORM,
            *ATTENTION,
            *only(is_dense, *MLP),
            *experts(has_experts),
            *only(_has_shared, *shared_expert("mlp.shared_experts")),
        ),
        sizes=_sparse_sizes,
        keys=tuple(key for key in KEYS if not key.name.endswith("epsilon") and key.name != "feed_forward_length"),
        more_keys=_sparse_keys,
        pre_names=("cohere2moe", "tiny_aya"),
    ),
    decoder(
        "command-r",
        ("CohereForCausalLM",),
        (ATTN_NORM, *ATTENTION, *QK_NORM, *MLP),
        keys=KEYS,
        more_keys=_command_r_keys,
        pre_names=("command-r",),
    ),
    decoder(
        "cohere2",
        ("Cohere2ForCausalLM",),
        (ATTN_NORM, *ATTENTION, *MLP),
        keys=KEYS,
        more_keys=_cohere2_keys,
        pre_names=("command-r",),
    ),
)
