"""Nemotron 3 and 4, dense -> `general.architecture` = nemotron.

Norms are published as differences from 1; GGUF stores factors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import ATTENTION, BLOCK, LAYER, decoder, norm, rotated_part
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.rope import rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import add

__all__ = ["ARCHITECTURES"]


def _norm(target: str, source: str) -> tuple[TensorMap, TensorMap]:
    return norm(target, source, add(1.0)), TensorMap(f"{target}.bias", f"{source}.bias", ("n_embd",))


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "relu2"})
    keys = {"rope.dimension_count": rotated_part(config, sizes["head_dim"], 0.5), **rope_keys(config)}
    return keys if "rope.scaling.type" in keys else {**keys, "rope.scaling.type": "none"}


ARCHITECTURES = (
    decoder(
        "nemotron",
        ("NemotronForCausalLM",),
        (
            *_norm(BLOCK + "attn_norm", LAYER + "input_layernorm"),
            *ATTENTION,
            *_norm(BLOCK + "ffn_norm", LAYER + "post_attention_layernorm"),
            *linear(BLOCK + "ffn_up", LAYER + "mlp.up_proj", "n_ff", "n_embd"),
            *linear(BLOCK + "ffn_down", LAYER + "mlp.down_proj", "n_embd", "n_ff"),
        ),
        keys=(
            *(key for key in DECODER_KEYS if not key.name.endswith("epsilon")),
            Key("attention.layer_norm_epsilon", "f32", ("norm_eps", "layer_norm_eps")),
            Key("vocab_size", "u32", ("vocab_size",)),
        ),
        more_keys=_more_keys,
        output_norm=_norm("output_norm", "model.norm"),
    ),
)
