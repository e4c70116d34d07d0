"""Command R, Aya and Command R7B -> `general.architecture` = command-r, cohere2.

Their checkpoints rotate neighbours already: no rows are moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes, TensorMap
from ollama_engine.convert.decoder import ATTENTION, ATTN_NORM, BLOCK, LAYER, MLP, decoder, layer_types, rope_and_size
from ollama_engine.convert.keys import DECODER_KEYS
from ollama_engine.convert.source.folder import Config

__all__ = ["ARCHITECTURES"]

KEYS = (
    *(key for key in DECODER_KEYS if key.name != "context_length"),
    # max_position_embeddings of Command R is less than what it was trained for, which model_max_length tells.
    Key("context_length", "u32", ("model_max_length", "max_position_embeddings")),
    Key("vocab_size", "u32", ("vocab_size",)),
    Key("logit_scale", "f32", ("logit_scale",)),
)
QK_NORM = (
    TensorMap(BLOCK + "attn_q_norm.weight", LAYER + "self_attn.q_norm.weight", ("n_head", "head_dim"), optional=True),
    TensorMap(
        BLOCK + "attn_k_norm.weight", LAYER + "self_attn.k_norm.weight", ("n_head_kv", "head_dim"), optional=True
    ),
)


def _command_r_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    keys = rope_and_size(config, sizes)
    return keys if "rope.scaling.type" in keys else {**keys, "rope.scaling.type": "none"}


def _cohere2_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    period = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=4)
    return {
        **_command_r_keys(config, sizes),
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": layer_types(config, lambda i: (i + 1) % period != 0),
    }


ARCHITECTURES = (
    decoder(
        "command-r",
        ("CohereForCausalLM",),
        (ATTN_NORM, *ATTENTION, *QK_NORM, *MLP),
        keys=KEYS,
        more_keys=_command_r_keys,
        pre_names=("command-r",),
    ),
    decoder(
        "cohere2",
        ("Cohere2ForCausalLM",),
        (ATTN_NORM, *ATTENTION, *MLP),
        keys=KEYS,
        more_keys=_cohere2_keys,
        pre_names=("command-r",),
    ),
)
