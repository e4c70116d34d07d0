"""Gemma 2 and the text part of Gemma 3 -> `general.architecture` = gemma2, gemma3.

Norms are published as differences from 1.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes, Tensor
from ollama_engine.convert.decoder import (
    ATTENTION,
    BLOCK,
    EMBEDDING,
    LAYER,
    MLP,
    OUTPUT,
    QK_NORM,
    layer_types,
    local_rope_keys,
    norm,
    rope_and_size,
    sizes,
)
from ollama_engine.convert.keys import DECODER_KEYS
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import add
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

logger = logging.getLogger(__name__)


def _windows(config: Config, period: int) -> Mapping[str, Any]:
    period = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=period)
    local = layer_types(config, lambda i: period == 0 or (i + 1) % period != 0)
    if not any(local):
        return {}
    return {
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": local,
        "attention.scale": config.number("query_pre_attn_scalar", default=256) ** -0.5,
    }


def _gemma2_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    caps = {
        name: float(config.number(name, default=0)) for name in ("attn_logit_softcapping", "final_logit_softcapping")
    }
    return {**rope_and_size(config, sizes), **_windows(config, 2), **caps}


def _gemma3_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(cap):
            raise UnsupportedModelError(f"{config.home}: {cap} is {config.get(cap)}; Gemma 3 has no soft caps")
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModelError(f"{config.home}: use_bidirectional_attention is on: this is an embedding model")
    if config.get("vision_config"):
        logger.warning("%s: the vision part is left out; the file reads text only", config.home)
    return {**rope_and_size(config, sizes), **local_rope_keys(config), **_windows(config, 6)}


def _shifted(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Norms as factors."""
    return tuple(replace(t, transform=add(1.0)) if re.search(r"norm\.weight$", t.source) else t for t in tensors)


def _block(qk_norm: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (
        norm(BLOCK + "attn_norm", LAYER + "input_layernorm"),
        *ATTENTION,
        *qk_norm,
        norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
        norm(BLOCK + "ffn_norm", LAYER + "pre_feedforward_layernorm"),
        *MLP,
        norm(BLOCK + "post_ffw_norm", LAYER + "post_feedforward_layernorm"),
    )


GEMMA3_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}
TAIL = (norm("output_norm", "model.norm"), OUTPUT)
ARCHITECTURES = (
    Architecture(
        name="gemma2",
        classes=("Gemma2ForCausalLM",),
        sizes=sizes,
        keys=DECODER_KEYS,
        tensors=_shifted((EMBEDDING, *_block(()), *TAIL)),
        more_keys=_gemma2_keys,
    ),
    Architecture(
        name="gemma3",
        classes=("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
        sizes=sizes,
        keys=DECODER_KEYS,
        tensors=_shifted((EMBEDDING, *_block(QK_NORM), *TAIL)),
        more_keys=_gemma3_keys,
        defaults=GEMMA3_DEFAULTS,
        ignored=(r"^(?:model\.)?(?:vision_tower|multi_modal_projector)\.",),
    ),
)
