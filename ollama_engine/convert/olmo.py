"""OLMo 2 and OLMo 3 -> `general.architecture` = olmo2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Sizes, TensorMap
from ollama_engine.convert.decoder import (
    ATTENTION,
    BLOCK,
    LAYER,
    MLP,
    decoder,
    layer_types,
    local_rope_keys,
    norm,
    rope_and_size,
)
from ollama_engine.convert.source.folder import Config

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


ARCHITECTURES = (
    decoder(
        "olmo2",
        ("Olmo2ForCausalLM", "Olmo3ForCausalLM"),
        (
            *ATTENTION,
            TensorMap(BLOCK + "attn_q_norm.weight", LAYER + "self_attn.q_norm.weight", ("q_size",)),
            TensorMap(BLOCK + "attn_k_norm.weight", LAYER + "self_attn.k_norm.weight", ("kv_size",)),
            norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
            *MLP,
            norm(BLOCK + "post_ffw_norm", LAYER + "post_feedforward_layernorm"),
        ),
        more_keys=_more_keys,
    ),
)
