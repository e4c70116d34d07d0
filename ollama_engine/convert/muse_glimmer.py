"""Muse Glimmer, its text part -> `general.architecture` = muse-glimmer.

Norms of blocks are published as differences from 1, and queries are scaled behind a norm without weights: GGUF has both
as weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import Sizes, linear
from ollama_engine.convert.decoder import BLOCK, LAYER, MLP, decoder, layer_types, norm, rope_and_size
from ollama_engine.convert.keys import require
from ollama_engine.convert.rope import rope_parameters
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import add, pair_heads
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]


def _local(config: Config) -> list[bool]:
    """Whether each layer is local; global ones are counted from the last."""
    n_layer = config.whole("num_hidden_layers")
    return layer_types(config, lambda i: (n_layer - 1 - i) % 4 != 0)


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_activation": "silu", "post_norm_eps": 1e-8, "attention_bias": False})
    local, base = _local(config), float(rope_parameters(config).get("rope_theta", 10000.0))
    bases = config.get("layer_rope_theta") or [base * is_local for is_local in local]
    if any(one != base * is_local for one, is_local in zip(bases, local, strict=True)):
        raise UnsupportedModelError(f"{config.home}: layer_rope_theta is {bases}; local layers have {base}, others 0")
    return {
        **rope_and_size(config, sizes),
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": local,
        "final_logit_softcapping": float(config.number("final_logit_softcapping", default=20.0)),
        "logit_scale": float(config.number("output_multiplier")),
    }


def _made_tensors(config: Config, sizes: Sizes) -> Mapping[str, NDArray[np.float32]]:
    scales = {"q": float(config.number("qk_scale_factor")), "k": 1.0}
    return {
        f"blk.{i}.attn_{name}_norm.weight": np.full(sizes["head_dim"], scale, np.float32)
        for i in range(sizes["n_layer"])
        for name, scale in scales.items()
    }


MUSE_GLIMMER = decoder(
    "muse-glimmer",
    ("MuseGlimmerForConditionalGeneration",),
    (
        norm(BLOCK + "attn_norm", LAYER + "input_layernorm", add(1.0)),
        *linear(BLOCK + "attn_q", LAYER + "self_attn.q_proj", "q_size", "n_embd", pair_heads("n_head")),
        *linear(BLOCK + "attn_k", LAYER + "self_attn.k_proj", "kv_size", "n_embd", pair_heads("n_head_kv")),
        *linear(BLOCK + "attn_v", LAYER + "self_attn.v_proj", "kv_size", "n_embd"),
        *linear(BLOCK + "attn_output", LAYER + "self_attn.o_proj", "n_embd", "q_size"),
        *linear(BLOCK + "attn_gate", LAYER + "self_attn.gate_proj", "q_size", "n_embd"),
        norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm", add(1.0)),
        norm(BLOCK + "ffn_norm", LAYER + "pre_feedforward_layernorm", add(1.0)),
        *MLP,
        norm(BLOCK + "post_ffw_norm", LAYER + "post_feedforward_layernorm", add(1.0)),
    ),
    more_keys=_more_keys,
    pre_names=("llama4",),
)
ARCHITECTURES = (
    replace(
        MUSE_GLIMMER,
        made_tensors=_made_tensors,
        unsupported={r"^(?:model\.)?vision_(?:tower|adapter|projection)\.": "images"},
    ),
)
