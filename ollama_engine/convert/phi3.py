"""Phi-3, Phi-3.5, Phi-4 and the text part of Phi-4 Multimodal -> `general.architecture` = phi3.

The multimodal model answers texts with its own weights; pictures and speech have towers and LoRA weights besides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import COMMON_RENAMES, Key, Sizes, linear
from ollama_engine.convert.decoder import ATTN_NORM, BLOCK, FFN_NORM, LAYER, decoder
from ollama_engine.convert.keys import DECODER_KEYS
from ollama_engine.convert.rope import rope_keys, rope_parameters
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import ModelFormatError

__all__ = ["ARCHITECTURES"]

FACTORS = {"rope_factors_long.weight": "long_factor", "rope_factors_short.weight": "short_factor"}


def _rotated(config: Config, sizes: Sizes) -> int:
    """How much of a head rotates."""
    part = rope_parameters(config).get("partial_rotary_factor") or config.number("partial_rotary_factor", default=1.0)
    return int(sizes["head_dim"] * part)


def _original(config: Config) -> int:
    """The context before LongRoPE stretched it; the value outside of the rotary parameters counts."""
    inner = rope_parameters(config).get("original_max_position_embeddings")
    default = inner or config.whole("max_position_embeddings")
    return config.whole("original_max_position_embeddings", default=int(default))


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    # 0 is what llama.cpp's converter writes for none: its loader tells Phi-4 by it.
    keys = {
        "rope.dimension_count": _rotated(config, sizes),
        "attention.sliding_window": config.whole("sliding_window", default=0),
        **rope_keys(config),
    }
    if "long_factor" not in rope_parameters(config):
        return keys
    return {
        **keys,
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": _original(config),
        "rope.scaling.attn_factor": _magnitude(config),
    }


def _magnitude(config: Config) -> float:
    """LongRoPE's attention factor, which scales queries and keys (Ding et al. 2024, and transformers)."""
    rope, original = rope_parameters(config), _original(config)
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    stretch = float(rope.get("factor") or config.whole("max_position_embeddings") / original)
    return math.sqrt(1 + math.log(stretch) / math.log(original)) if stretch > 1 else 1.0


def _made_tensors(config: Config, sizes: Sizes) -> Mapping[str, NDArray[np.float32]]:
    rope, n = rope_parameters(config), _rotated(config, sizes) // 2
    if "long_factor" not in rope:
        return {}
    made = {target: np.array(rope.get(source, []), np.float32) for target, source in FACTORS.items()}
    for target, values in made.items():
        if values.shape != (n,):
            raise ModelFormatError(f"{config.home}: {FACTORS[target]} has {values.size} numbers, expected {n}")
    return made


PHI3 = decoder(
    "phi3",
    ("Phi3ForCausalLM", "Phi4MultimodalForCausalLM", "Phi4MMForCausalLM"),
    (
        ATTN_NORM,
        *linear(BLOCK + "attn_qkv", LAYER + "self_attn.qkv_proj", "qkv_size", "n_embd"),
        *linear(BLOCK + "attn_output", LAYER + "self_attn.o_proj", "n_embd", "q_size"),
        FFN_NORM,
        *linear(BLOCK + "ffn_up", LAYER + "mlp.gate_up_proj", "n_ff_twice", "n_embd"),
        *linear(BLOCK + "ffn_down", LAYER + "mlp.down_proj", "n_embd", "n_ff"),
    ),
    keys=(*DECODER_KEYS, Key("vocab_size", "u32", ("vocab_size",))),
    more_keys=_more_keys,
    llama3_rope=False,
)
ARCHITECTURES = (
    replace(
        PHI3,
        made_tensors=_made_tensors,
        renames=(*COMMON_RENAMES, (r"\.base_layer\.(?=weight$)", ".")),
        ignored=(r"\.lora_[AB]\.",),
        unsupported={r"^model\.embed_tokens_extend\.": "images and sound"},
    ),
)
