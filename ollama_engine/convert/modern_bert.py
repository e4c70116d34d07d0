"""ModernBERT -> `general.architecture` = modern-bert."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Sizes, TensorMap, linear
from ollama_engine.convert.bidirectional import MLM_HEADS, bidirectional_keys, encoder, norm, rank_keys, scorer
from ollama_engine.convert.decoder import BLOCK, layer_types
from ollama_engine.convert.rope import rope_parameters
from ollama_engine.convert.sentence_modules import POOLING
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

LAYER = "layers.{i}."
BASES = {"full_attention": ("global_rope_theta", 160000.0), "sliding_attention": ("local_rope_theta", 10000.0)}
"""Kind of layer -> where older configs have the base of its rotation, and what it is by default."""


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    every = config.get("global_attn_every_n_layers", default=3)
    local = layer_types(config, lambda i: bool(every) and i % every != 0)
    return {
        **bidirectional_keys(config, sizes),
        "attention.sliding_window": config.whole("local_attention", default=128),
        "attention.sliding_window_pattern": local,
        "rope.scaling.type": "none",
        "rope.freq_base": _base(config, "full_attention"),
        "rope.freq_base_swa": _base(config, "sliding_attention"),
        "vocab_size": sizes["n_vocab"],
        "hidden_activation": _activation(config, "hidden_activation", ("gelu", "silu")),
    }


def _base(config: Config, kind: str) -> float:
    rope = rope_parameters(config, kind)
    if rope["rope_type"] != "default":
        raise UnsupportedModelError(f"{config.home}: rope_type is {rope['rope_type']!r}; ModernBERT's is 'default'")
    name, default = BASES[kind]
    return float(rope.get("rope_theta", config.number(name, default=default)))


def _activation(config: Config, name: str, known: tuple[str, ...]) -> str:
    value = config.get(name, default="gelu")
    if value not in known:
        raise UnsupportedModelError(f"{config.home}: {name} is {value!r}; supported: {', '.join(known)}")
    return str(value)


def _ranker_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    _activation(config, "classifier_activation", ("gelu",))
    pooling = config.get("classifier_pooling", default="cls")
    if pooling not in ("cls", "mean"):
        raise UnsupportedModelError(f"{config.home}: classifier_pooling is {pooling!r}; supported: cls, mean")
    return {**_keys(config, sizes), **rank_keys(config, sizes), "classifier.pooling_type": POOLING[pooling]}


ENCODER = encoder(
    "modern-bert",
    ("ModernBertModel", "ModernBertForMaskedLM"),
    (
        TensorMap("token_embd.weight", "embeddings.tok_embeddings.weight", ("n_vocab", "n_embd")),
        *norm("token_embd_norm", "embeddings.norm", bias=False),
        *(replace(rule, applies=lambda config, layer: layer > 0)
          for rule in norm(BLOCK + "attn_norm", LAYER + "attn_norm", bias=False)),
        *linear(BLOCK + "attn_qkv", LAYER + "attn.Wqkv", "qkv_size", "n_embd"),
        *linear(BLOCK + "attn_output", LAYER + "attn.Wo", "n_embd", "n_embd"),
        *norm(BLOCK + "ffn_norm", LAYER + "mlp_norm", bias=False),
        *linear(BLOCK + "ffn_up", LAYER + "mlp.Wi", "n_ff_twice", "n_embd"),
        *linear(BLOCK + "ffn_down", LAYER + "mlp.Wo", "n_embd", "n_ff"),
        *norm("output_norm", "final_norm", bias=False),
    ),
    defaults={"norm_eps": 1e-5},
    more_keys=_keys,
    renames=((r"^model\.", ""),),
    heads=(r"^(?:head|decoder)\.",),
)  # fmt: skip
MODERN_BERT = replace(ENCODER, pre_names=("modern-bert",))

ARCHITECTURES = (
    MODERN_BERT,
    replace(
        MODERN_BERT,
        classes=("ModernBertForSequenceClassification",),
        tensors=(
            *MODERN_BERT.tensors,
            *norm("cls.norm", "head.norm", bias=False),
            *scorer("head.dense", "classifier"),
        ),
        more_keys=_ranker_keys,
        ignored=MLM_HEADS,
    ),
)
