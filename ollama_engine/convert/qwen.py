"""Qwen2, Qwen2.5 and Qwen3 -> `general.architecture` = qwen2, qwen3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes
from ollama_engine.convert.decoder import (
    ATTENTION,
    BLOCK,
    EMBEDDING,
    LAYER,
    MLP,
    OUTPUT,
    QK_NORM,
    layer_types,
    norm,
    rope_and_size,
    sizes,
)
from ollama_engine.convert.keys import DECODER_KEYS
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

HEAD = (EMBEDDING, norm(BLOCK + "attn_norm", LAYER + "input_layernorm"))
MIDDLE = norm(BLOCK + "ffn_norm", LAYER + "post_attention_layernorm")
TAIL = (norm("output_norm", "model.norm"), OUTPUT)


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("use_sliding_window") and any(layer_types(config, lambda i: i >= config.whole("max_window_layers"))):
        raise UnsupportedModelError(f"{config.home}: use_sliding_window is on, which GGUF has no key for in qwen")
    return rope_and_size(config, sizes)


ARCHITECTURES = (
    Architecture(
        name="qwen2",
        classes=("Qwen2ForCausalLM",),
        sizes=sizes,
        keys=DECODER_KEYS,
        tensors=(*HEAD, *ATTENTION, MIDDLE, *MLP, *TAIL),
        more_keys=_more_keys,
        pre_names=("qwen2",),
    ),
    Architecture(
        name="qwen3",
        classes=("Qwen3ForCausalLM",),
        sizes=sizes,
        keys=DECODER_KEYS,
        tensors=(*HEAD, *ATTENTION, *QK_NORM, MIDDLE, *MLP, *TAIL),
        more_keys=_more_keys,
        pre_names=("qwen2",),
    ),
)
