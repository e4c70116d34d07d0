"""OLMo 2 and OLMo 3 -> `general.architecture` = olmo2; OLMo Hybrid -> olmo-hybrid.

Transformers 5.23 cuts the joined convolutions of OLMo Hybrid into equal parts where it saves them, which are read where
keys are as long as values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ollama_engine.convert.architecture import COMMON_RENAMES, Sizes, TensorMap, decoder_sizes, linear
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    FFN_NORM,
    LAYER,
    MLP,
    attention_layers,
    decoder,
    layer_types,
    local_rope_keys,
    norm,
    only,
    rope_and_size,
)
from ollama_engine.convert.rope import rope_parameters
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, squeeze

__all__ = ["ARCHITECTURES"]


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    keys = rope_and_size(config, sizes)
    if config.get("sliding_window") is None:
        return keys
    return {
        **keys,
        **local_rope_keys(config),
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": layer_types(config, lambda i: (i + 1) % 4 != 0),
    }


def _hybrid_sizes(config: Config) -> dict[str, int]:
    plain = decoder_sizes(config)
    n_heads = config.whole("linear_num_value_heads", default=plain["n_head"])
    if config.whole("linear_num_key_heads", default=n_heads) != n_heads or n_heads < 1:
        raise config.wrong(("linear_num_key_heads",), "as many as of values, at least 1", n_heads)
    key_dim = config.whole("linear_key_head_dim", default=plain["n_embd"] * 3 // 4 // n_heads)
    value_dim = config.whole("linear_value_head_dim", default=2 * key_dim)
    return plain | {
        "n_value_heads": n_heads, "key_dim": key_dim, "value_dim": value_dim, "key_size": n_heads * key_dim,
        "value_size": n_heads * value_dim, "n_taps": config.whole("linear_conv_kernel_dim", default=4),
    }  # fmt: skip


def _hybrid_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    rotates = rope_parameters(config).get("rope_theta") is not None
    return {
        **(rope_and_size(config, sizes) if rotates else {}),
        "attention.recurrent_layers": [not attends for attends in attention_layers(config)],
        "ssm.conv_kernel": sizes["n_taps"],
        "ssm.state_size": sizes["key_dim"],
        "ssm.group_count": sizes["n_value_heads"],
        "ssm.time_step_rank": sizes["n_value_heads"],
        "ssm.inner_size": sizes["value_size"],
        "ssm.beta_scale": 2.0 if config.get("linear_allow_neg_eigval", default=True) else 1.0,
    }


def _convolution(part: str, size: str) -> TensorMap:
    return TensorMap(f"{BLOCK}ssm_conv1d_{part}.weight", f"{LINEAR}{part}_conv1d.weight", (size, 1, "n_taps"),
                     squeeze(1))  # fmt: skip


LINEAR = LAYER + "linear_attn."
DELTA_NET = (
    ATTN_NORM,
    *linear(BLOCK + "attn_q", LINEAR + "q_proj", "key_size", "n_embd"),
    *linear(BLOCK + "attn_k", LINEAR + "k_proj", "key_size", "n_embd"),
    *linear(BLOCK + "attn_v", LINEAR + "v_proj", "value_size", "n_embd"),
    *linear(BLOCK + "attn_gate", LINEAR + "g_proj", "value_size", "n_embd"),
    *linear(BLOCK + "ssm_beta", LINEAR + "b_proj", "n_value_heads", "n_embd"),
    *linear(BLOCK + "ssm_alpha", LINEAR + "a_proj", "n_value_heads", "n_embd"),
    _convolution("q", "key_size"),
    _convolution("k", "key_size"),
    _convolution("v", "value_size"),
    TensorMap(BLOCK + "ssm_a", LINEAR + "A_log", ("n_value_heads",),
              Transform(lambda values, sizes: -np.exp(values), arithmetic=True)),
    TensorMap(BLOCK + "ssm_dt.bias", LINEAR + "dt_bias", ("n_value_heads",)),
    TensorMap(BLOCK + "ssm_norm.weight", LINEAR + "o_norm.weight", ("value_dim",)),
    *linear(BLOCK + "ssm_out", LINEAR + "o_proj", "n_embd", "value_size"),
    FFN_NORM,
)  # fmt: skip
NORMED_ATTENTION = (
    *ATTENTION,
    TensorMap(BLOCK + "attn_q_norm.weight", LAYER + "self_attn.q_norm.weight", ("q_size",)),
    TensorMap(BLOCK + "attn_k_norm.weight", LAYER + "self_attn.k_norm.weight", ("kv_size",)),
    norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
)
POST_FFN = norm(BLOCK + "post_ffw_norm", LAYER + "post_feedforward_layernorm")

ARCHITECTURES = (
    decoder(
        "olmo2",
        ("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
        (*NORMED_ATTENTION, *MLP, POST_FFN),
        more_keys=_more_keys,
    ),
    replace(
        decoder(
            "olmo-hybrid",
            ("OlmoHybridForCausalLM",),
            (
                *only(lambda config, i: attention_layers(config)[i], *NORMED_ATTENTION, POST_FFN),
                *only(lambda config, i: not attention_layers(config)[i], *DELTA_NET),
                *MLP,
            ),
            sizes=_hybrid_sizes,
            more_keys=_hybrid_keys,
        ),
        renames=(
            *COMMON_RENAMES,
            (r"\.attention_layer_norm\.", ".input_layernorm."),
            (r"\.feedforward_layer_norm\.", ".post_attention_layernorm."),
        ),
        always_f32=(r"ssm_conv1d_[qkv]\.weight$",),
    ),
)
