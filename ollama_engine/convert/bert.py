"""BERT and Nomic Embed Text -> `general.architecture` = bert, nomic-bert.

A cross-encoder (a BERT that scores pairs of texts) keeps its pooler, which is what llama.cpp computes as `cls`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Sizes, TensorMap, linear
from ollama_engine.convert.bidirectional import MLM_HEADS, bidirectional_keys, encoder, norm, rank_keys, scorer
from ollama_engine.convert.decoder import BLOCK
from ollama_engine.convert.rope import rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

RENAMES = (
    (r"^(?:bert|nomic_bert)\.", ""),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"^emb_ln\.", "embeddings.LayerNorm."),
)
DEFAULTS = {"layer_norm_eps": 1e-12, "type_vocab_size": 2}
POOLER = r"(?:^|\.)pooler\.dense\."
LAYER = "encoder.layer.{i}."
NOMIC = "encoder.layers.{i}."
EMBEDDINGS = (
    TensorMap("token_embd.weight", "embeddings.word_embeddings.weight", ("n_vocab", "n_embd")),
    TensorMap("token_types.weight", "embeddings.token_type_embeddings.weight", ("n_token_types", "n_embd"),
           applies=lambda config, layer: bool(config.whole("type_vocab_size", default=0))),
    *norm("token_embd_norm", "embeddings.LayerNorm"),
)  # fmt: skip


def _bert_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    _expect(config, "hidden_act", "gelu", "gelu")
    _expect(config, "position_embedding_type", "absolute", "absolute")
    return bidirectional_keys(config, sizes)


def _ranker_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    return {**_bert_keys(config, sizes), **rank_keys(config, sizes)}


def _nomic_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    _expect(config, "activation_function", "swiglu", "swiglu")
    _expect(config, "hidden_act", "silu", "silu")
    _expect(config, "prenorm", False, False)
    _expect(config, "rotary_emb_fraction", 1.0, 1.0)
    _expect(config, "rotary_emb_interleaved", False, False)
    _expect(config, "moe_every_n_layers", 0, 0)
    keys = {"rope.freq_base": float(config.number("rotary_emb_base", default=1000.0)), **rope_keys(config)}
    if config.get("n_positions") == 8192 and config.number("max_trained_positions", default=2048) == 2048:
        # What text-embed 1 and 1.5 say is reached by scaling the rotation, which the file does not.
        keys["context_length"] = 2048
    return {**bidirectional_keys(config, sizes), **keys}


def _expect(config: Config, name: str, default: Any, expected: Any) -> None:
    """Raise UnsupportedModelError for a variant that the architecture does not compute."""
    value = config.get(name, default=default)
    if value != expected:
        raise UnsupportedModelError(f"{config.home}: {name} is {value!r}; supported: {expected!r}")


BERT = encoder(
    "bert",
    ("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    (
        *EMBEDDINGS,
        TensorMap("position_embd.weight", "embeddings.position_embeddings.weight", ("n_ctx", "n_embd")),
        *linear(BLOCK + "attn_q", LAYER + "attention.self.query", "n_embd", "n_embd"),
        *linear(BLOCK + "attn_k", LAYER + "attention.self.key", "n_embd", "n_embd"),
        *linear(BLOCK + "attn_v", LAYER + "attention.self.value", "n_embd", "n_embd"),
        *linear(BLOCK + "attn_output", LAYER + "attention.output.dense", "n_embd", "n_embd"),
        *norm(BLOCK + "attn_output_norm", LAYER + "attention.output.LayerNorm"),
        *linear(BLOCK + "ffn_up", LAYER + "intermediate.dense", "n_ff", "n_embd"),
        *linear(BLOCK + "ffn_down", LAYER + "output.dense", "n_embd", "n_ff"),
        *norm(BLOCK + "layer_output_norm", LAYER + "output.LayerNorm"),
    ),
    defaults=DEFAULTS,
    more_keys=_bert_keys,
    renames=RENAMES,
    heads=(POOLER,),
)

ARCHITECTURES = (
    BERT,
    replace(
        BERT,
        classes=("BertForSequenceClassification",),
        tensors=(*BERT.tensors, *scorer("pooler.dense", "classifier")),
        more_keys=_ranker_keys,
        ignored=MLM_HEADS,
    ),
    encoder(
        "nomic-bert",
        ("NomicBertModel", "NomicBertForMaskedLM", "NomicBertForPreTraining"),
        (
            *EMBEDDINGS,
            *linear(BLOCK + "attn_qkv", NOMIC + "attn.Wqkv", "qkv_size", "n_embd"),
            *linear(BLOCK + "attn_output", NOMIC + "attn.out_proj", "n_embd", "n_embd"),
            *norm(BLOCK + "attn_output_norm", NOMIC + "norm1"),
            *linear(BLOCK + "ffn_up", NOMIC + "mlp.fc11", "n_ff", "n_embd"),
            *linear(BLOCK + "ffn_gate", NOMIC + "mlp.fc12", "n_ff", "n_embd"),
            *linear(BLOCK + "ffn_down", NOMIC + "mlp.fc2", "n_embd", "n_ff"),
            *norm(BLOCK + "layer_output_norm", NOMIC + "norm2"),
        ),
        defaults=DEFAULTS,
        more_keys=_nomic_keys,
        renames=RENAMES,
        heads=(POOLER,),
    ),
)
