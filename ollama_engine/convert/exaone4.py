"""EXAONE 4 -> `general.architecture` = exaone4."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes
from ollama_engine.convert.decoder import (
    ATTENTION,
    BLOCK,
    LAYER,
    MLP,
    QK_NORM,
    decoder,
    layer_types,
    norm,
    rope_and_size,
)
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.source.folder import Config

__all__ = ["ARCHITECTURES"]


def _is_local(config: Config, layer: int) -> bool:
    """By the pattern of a config without layer_types: a period, or a letter for each layer of one."""
    pattern = config.get("sliding_window_pattern", default=4)
    if isinstance(pattern, str) and pattern:
        return pattern[layer % len(pattern)] == "L"
    return (layer + 1) % max(1, config.whole("sliding_window_pattern", default=4)) != 0


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu"})
    keys = rope_and_size(config, sizes)
    if config.get("sliding_window") is None:
        return keys
    return {
        **keys,
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": layer_types(config, lambda i: _is_local(config, i)),
    }


ARCHITECTURES = (
    decoder(
        "exaone4",
        ("Exaone4ForCausalLM",),
        (
            *ATTENTION,
            *QK_NORM,
            norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
            *MLP,
            norm(BLOCK + "post_ffw_norm", LAYER + "post_feedforward_layernorm"),
        ),
        keys=(*DECODER_KEYS, Key("vocab_size", "u32", ("vocab_size",))),
        more_keys=_more_keys,
        pre_names=("exaone4",),
    ),
)
