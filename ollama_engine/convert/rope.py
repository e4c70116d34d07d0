"""Owns what config.json says about rotary positions, in all of its dialects, as metadata and factors.

Older files have `rope_theta` and `rope_scaling`, newer ones `rope_parameters`, perhaps one for each kind of layer.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.late_warnings import warn
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import ModelFormatError, UnsupportedModelError

__all__ = [
    "MAGNITUDE",
    "ROPE_FACTORS",
    "has_factors",
    "llama3_factors",
    "mrope_sections",
    "rope_keys",
    "rope_parameters",
]

logger = logging.getLogger(__name__)

KINDS = ("default", "linear", "yarn", "llama3", "longrope", "su", "dynamic", "mrope")
"""mrope is default, with positions of several axes: which pairs go by which is the architecture's matter."""

ROPE_FACTORS = "rope_freqs.weight"
"""The tensor of `llama3_factors`, which no key stands for."""

MAGNITUDE = "rope.scaling.yarn_attn_factor"
"""The key of what YaRN multiplies queries and keys by."""
YARN_KEYS = {
    "rope.scaling.yarn_ext_factor": ("extrapolation_factor",),
    MAGNITUDE: ("attention_factor", "attn_factor"),
    "rope.scaling.yarn_beta_fast": ("beta_fast",),
    "rope.scaling.yarn_beta_slow": ("beta_slow",),
}


def rope_parameters(config: Config, layers: str = "full_attention") -> dict[str, Any]:
    """The parameters of one kind of layer, with `rope_type` and, where the config says it, `rope_theta`."""
    rope: dict[str, Any] = {**config.mapping("rope_scaling"), **config.mapping("rope_parameters")}
    if "full_attention" in rope or "sliding_attention" in rope:
        rope = dict(rope.get(layers) or {})
    if config.get("rope_theta") is not None:
        rope.setdefault("rope_theta", config.number("rope_theta"))
    rope["rope_type"] = rope.get("rope_type") or rope.get("type") or "default"
    if rope["rope_type"] not in KINDS:
        raise UnsupportedModelError(
            f"{config.home}: rope_type {rope['rope_type']!r} is not supported; supported: {', '.join(KINDS)}"
        )
    return rope


def rope_keys(config: Config, *, mscale: bool = True, truncate: bool = True) -> dict[str, Any]:
    """Metadata below the architecture's name, as llama.cpp's converter writes it. llama3's factors are a tensor.

    Args:
        config: the model's.
        mscale: whether `mscale` and `mscale_all_dim` give YaRN's magnitude, as in transformers; False where the
            architecture has keys of its own for them.
        truncate: whether its models round the ends of YaRN's ramp; no key says so.
    """
    rope = rope_parameters(config)
    kind, factor = rope["rope_type"], rope.get("factor")
    keys: dict[str, Any] = {}
    if "rope_theta" in rope:
        keys["rope.freq_base"] = float(rope["rope_theta"])
    if kind in ("linear", "yarn"):
        if not isinstance(factor, (int, float)):
            raise ModelFormatError(f"{config.home}: rope_type {kind} wants a factor, got {factor!r}")
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": float(factor)}
    if kind == "yarn":
        if rope.get("truncate", True) != truncate:
            state = "off" if truncate else "on"
            raise UnsupportedModelError(f"{config.home}: truncate is {state} for yarn, which GGUF has no key for")
        keys |= _yarn_keys(rope, config)
        above, below = (float(rope.get(name) or 0) for name in ("mscale", "mscale_all_dim"))
        if mscale and above and below and MAGNITUDE not in keys:
            grown = 0.1 * math.log(max(1.0, float(rope["factor"])))
            keys[MAGNITUDE] = (1 + above * grown) / (1 + below * grown)
    if kind in ("longrope", "su"):
        keys["rope.scaling.type"] = "longrope"
    if kind == "dynamic":
        warn(logger, "%s: rope_type dynamic depends on the length of the text; it is written as none", config.home)
    return keys


def _yarn_keys(rope: Mapping[str, Any], config: Config) -> dict[str, Any]:
    original = rope.get("original_max_position_embeddings") or config.whole("max_position_embeddings")
    keys: dict[str, Any] = {"rope.scaling.original_context_length": int(original)}
    for key, names in YARN_KEYS.items():
        value = next((rope[name] for name in names if rope.get(name) is not None), None)
        if value is not None:
            keys[key] = float(value)
    return keys


def mrope_sections(config: Config, pairs: int, default: Sequence[int] | None = None) -> list[int]:
    """How many of a head's `pairs` turn by time, height and width. Raises ModelFormatError for other numbers."""
    found = rope_parameters(config).get("mrope_section", default)
    sections = list(found) if isinstance(found, (list, tuple)) else []
    if len(sections) != 3 or not all(type(n) is int and n >= 0 for n in sections) or sum(sections) != pairs:
        raise config.wrong(("mrope_section",), f"three numbers of pairs that add up to {pairs}", found)
    return sections


def has_factors(config: Config) -> bool:
    """Whether the rotation is Llama 3.1's."""
    rope = {**config.mapping("rope_scaling"), **config.mapping("rope_parameters")}
    rope = rope.get("full_attention") or rope
    return "llama3" in (rope.get("rope_type"), rope.get("type"))


def llama3_factors(config: Config, n_dims: int) -> NDArray[np.float32]:
    """Divisor of each rotation frequency of Llama 3.1, [n_dims / 2].

    Source: the reference implementation of Llama 3.1. Wavelengths below the high-frequency limit stay, those above the
    low-frequency limit are stretched by `factor`, and between them the two are mixed.
    """
    rope = rope_parameters(config)
    factor, original = float(rope.get("factor", 8.0)), float(rope.get("original_max_position_embeddings", 8192))
    low, high = float(rope.get("low_freq_factor", 1.0)), float(rope.get("high_freq_factor", 4.0))
    base = float(rope.get("rope_theta", 10000.0))
    wavelength = 2 * np.pi * base ** (np.arange(0, n_dims, 2, dtype=np.float64) / n_dims)
    turns = original / wavelength
    # Llama 4 has equal limits: a step, not a ramp.
    smooth = np.clip((turns - low) / (high - low), 0, 1) if high != low else (turns >= high).astype(np.float64)
    return (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
