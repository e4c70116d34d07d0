"""GLM-4 of 2025, GLM-4.5 and 4.6 -> `general.architecture` = glm4, glm4moe.

GLM-4 rotates neighbours already: no rows are moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    FFN_NORM,
    LAYER,
    MLP,
    QK_NORM,
    decoder,
    experts,
    has_experts,
    is_dense,
    norm,
    only,
    rotated_part,
    shared_expert,
    sizes,
)
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.next_tokens import HEAD, N_NEXT, behind, counted_on, next_token_keys, placed_behind
from ollama_engine.convert.rope import rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.ml.gguf.gating import SIGMOID

__all__ = ["ARCHITECTURES"]


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu"})
    return {"rope.dimension_count": rotated_part(config, sizes["head_dim"], 0.5), **rope_keys(config)}


def _sparse_sizes(config: Config) -> dict[str, int]:
    plain = sizes(config)
    shared = config.whole("n_shared_experts", default=1) * plain["n_ff_exp"]
    return {
        **plain, "n_expert": config.whole("n_routed_experts", "num_local_experts"), "n_ff_shexp": shared,
        "n_embd_twice": 2 * plain["n_embd"], N_NEXT: config.whole(N_NEXT, default=0),
    }  # fmt: skip


def _sparse_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"n_group": 1, "topk_group": 1})
    return {
        **_more_keys(config, sizes),
        **next_token_keys(sizes),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_count": sizes["n_ff_shexp"] // sizes["n_ff_exp"],
        "leading_dense_block_count": config.whole("first_k_dense_replace", default=0),
        "expert_gating_func": SIGMOID,
        "expert_weights_scale": float(config.number("routed_scaling_factor", default=1.0)),
        "expert_weights_norm": bool(config.get("norm_topk_prob", default=True)),
    }


CORRECTION = TensorMap(BLOCK + "exp_probs_b.bias", LAYER + "mlp.gate.e_score_correction_bias", ("n_expert",))
SPARSE_ATTENTION = (
    ATTN_NORM,
    *ATTENTION,
    *(replace(tensor, optional=True) for tensor in QK_NORM),
    norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
)
MIXTURE = (*experts(has_experts), *only(has_experts, CORRECTION, *shared_expert("mlp.shared_experts")))
GLM4MOE = decoder(
    "glm4moe",
    ("Glm4MoeForCausalLM",),
    (*SPARSE_ATTENTION, *only(is_dense, *MLP), *MIXTURE),
    sizes=_sparse_sizes,
    keys=(
        *(key for key in DECODER_KEYS if key.name != "expert_count"),
        Key("expert_count", "u32", ("n_routed_experts", "num_local_experts")),
    ),
    more_keys=_sparse_keys,
    pre_names=("glm4",),
)

ARCHITECTURES = (
    decoder(
        "glm4",
        ("Glm4ForCausalLM",),
        (
            ATTN_NORM,
            *ATTENTION,
            norm(BLOCK + "post_attention_norm", LAYER + "post_self_attn_layernorm"),
            FFN_NORM,
            *linear(BLOCK + "ffn_up", LAYER + "mlp.gate_up_proj", "n_ff_twice", "n_embd"),
            *linear(BLOCK + "ffn_down", LAYER + "mlp.down_proj", "n_embd", "n_ff"),
            norm(BLOCK + "post_ffw_norm", LAYER + "post_mlp_layernorm"),
        ),
        more_keys=_more_keys,
        pre_names=("glm4",),
    ),
    replace(
        GLM4MOE,
        tensors=(*GLM4MOE.tensors, *HEAD, *placed_behind((*SPARSE_ATTENTION, *MIXTURE), behind)),
        told_by_names=counted_on,
    ),
)
