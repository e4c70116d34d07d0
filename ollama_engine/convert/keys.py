"""Metadata keys that many architectures take from config.json alike, and how a value is taken from there or checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ollama_engine.convert.architecture import Key
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import UnsupportedModelError

__all__ = ["DECODER_KEYS", "read_keys", "require"]

DECODER_KEYS = (
    Key("block_count", "u32", ("num_hidden_layers", "n_layer", "num_layers")),
    Key("context_length", "u32", ("max_position_embeddings", "n_ctx", "n_positions", "max_seq_len")),
    Key("embedding_length", "u32", ("hidden_size", "n_embd")),
    Key("feed_forward_length", "u32", ("intermediate_size", "n_inner")),
    Key("attention.head_count", "u32", ("num_attention_heads", "n_head")),
    Key("attention.head_count_kv", "u32", ("num_key_value_heads",), required=False),
    Key("attention.key_length", "u32", ("head_dim",), required=False),
    Key("attention.value_length", "u32", ("head_dim",), required=False),
    Key("attention.layer_norm_rms_epsilon", "f32", ("rms_norm_eps", "norm_eps"), required=False),
    Key("attention.layer_norm_epsilon", "f32", ("layer_norm_eps", "layer_norm_epsilon"), required=False),
    Key("expert_count", "u32", ("num_local_experts", "num_experts"), required=False),
    Key("expert_used_count", "u32", ("num_experts_per_tok",), required=False),
)


def read_keys(keys: Iterable[Key], config: Config) -> dict[str, Any]:
    """Values by the names of keys.

    Raises ModelFormatError for a config.json that lacks a required value or has one of another kind.
    """
    return {key.name: _value(key, config) for key in keys if key.required or config.get(*key.sources) is not None}


def require(config: Config, values: Mapping[str, Any]) -> None:
    """Raise UnsupportedModelError where config.json has another value than the one that GGUF files stand for."""
    for name, value in values.items():
        stored = config.get(name, default=value)
        if stored != value:
            raise UnsupportedModelError(f"{config.home}: {name} is {stored!r}, and GGUF files have {value!r} only")


def _value(key: Key, config: Config) -> Any:
    if key.kind == "u32":
        return config.whole(*key.sources)
    if key.kind == "f32":
        return float(config.number(*key.sources))
    value = config.get(*key.sources)
    if type(value) is not {"bool": bool, "str": str}[key.kind]:
        raise config.wrong(key.sources, f"a {key.kind}", value)
    return value
