"""Declarations that all text encoders share: sizes, keys, the classification head of rerankers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ollama_engine.convert.architecture import Architecture, Key, MetadataValues, Sizes, TensorMap, linear
from ollama_engine.convert.source.folder import Config

__all__ = [
    "MLM_HEADS",
    "NAMES",
    "RANK",
    "bidirectional_keys",
    "encoder",
    "norm",
    "rank_keys",
    "scorer",
]

RANK = 4
"""llama.cpp's number of the pooling that a classification head does; see `sentence_modules` for the others."""

NAMES: Mapping[str, tuple[str, ...]] = {
    "n_layer": ("num_hidden_layers", "n_layer"),
    "n_embd": ("hidden_size", "n_embd"),
    "n_head": ("num_attention_heads", "n_head"),
    "n_ff": ("intermediate_size", "n_inner"),
    "n_ctx": ("max_position_embeddings", "n_positions"),
    "n_vocab": ("vocab_size",),
}
"""Sizes under any of their names in config.json."""

BIDIRECTIONAL_KEYS = (
    Key("block_count", "u32", NAMES["n_layer"]),
    Key("context_length", "u32", NAMES["n_ctx"]),
    Key("embedding_length", "u32", NAMES["n_embd"]),
    Key("feed_forward_length", "u32", NAMES["n_ff"]),
    Key("attention.head_count", "u32", NAMES["n_head"]),
    Key("attention.layer_norm_epsilon", "f32", ("layer_norm_eps", "layer_norm_epsilon", "norm_eps")),
)

MLM_HEADS = (r"^cls\.(?:predictions|seq_relationship)\.", r"(?:^|\.)embeddings\.position_ids$")
"""Tensors saved with an encoder that embeddings do not need."""


def sizes(config: Config) -> dict[str, int]:
    """The sizes that shapes are made of. Raises ModelFormatError where config.json lacks one."""
    plain = {name: config.whole(*names) for name, names in NAMES.items()}
    return plain | {
        "qkv_size": 3 * plain["n_embd"],
        "n_ff_twice": 2 * plain["n_ff"],
        "n_token_types": config.whole("type_vocab_size", default=0),
        "n_scores": len(labels(config)),
    }


def bidirectional_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    """Keys of every encoder. A key that begins with "tokenizer." is not below the architecture's name."""
    types = sizes["n_token_types"]
    return {"attention.causal": False, **({"tokenizer.ggml.token_type_count": types} if types else {})}


def encoder(
    name: str,
    classes: tuple[str, ...],
    tensors: tuple[TensorMap, ...],
    *,
    defaults: Mapping[str, Any],
    more_keys: Callable[[Config, Sizes], MetadataValues],
    renames: tuple[tuple[str, str], ...],
    heads: tuple[str, ...],
) -> Architecture:
    """A text encoder, without the `heads` (regular expressions of names) that embeddings do not need.

    See `Architecture` for the rest.
    """
    return Architecture(
        name=name,
        classes=classes,
        sizes=sizes,
        keys=BIDIRECTIONAL_KEYS,
        tensors=tensors,
        defaults=defaults,
        more_keys=more_keys,
        renames=renames,
        ignored=(*MLM_HEADS, *heads),
    )


def labels(config: Config) -> list[str]:
    """Names of a classification head's outputs; transformers saves none where there are two."""
    named = config.mapping("id2label")
    count = len(named) or config.whole("num_labels", default=2)
    return [str(named.get(str(i), f"LABEL_{i}")) for i in range(count)]


def rank_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    """Keys of an encoder with a classification head."""
    return {**bidirectional_keys(config, sizes), "pooling_type": RANK, "classifier.output_labels": labels(config)}


def norm(target: str, source: str, *, bias: bool = True) -> tuple[TensorMap, ...]:
    """A layer norm. Old checkpoints call its weight gamma and its bias beta."""
    return (
        TensorMap(f"{target}.weight", f"{source}.weight", ("n_embd",)),
        TensorMap(f"{target}.bias", f"{source}.bias", ("n_embd",), optional=not bias),
    )


def scorer(dense: str, output: str) -> tuple[TensorMap, ...]:
    """A classification head: a projection before its activation, and one to scores."""
    return (*linear("cls", dense, "n_embd", "n_embd"), *linear("cls.output", output, "n_scores", "n_embd"))
