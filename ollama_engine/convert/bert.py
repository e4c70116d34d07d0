"""BERT, RoBERTa, XLM-R, Nomic Embed Text -> `general.architecture` = bert, nomic-bert, nomic-bert-moe.

A cross-encoder (a BERT that scores pairs of texts) keeps its pooler, which is what llama.cpp computes as `cls`. RoBERTa
counts positions from behind the number of its padding token, so the rows before that go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ollama_engine.convert.architecture import Sizes, TensorMap, linear
from ollama_engine.convert.bidirectional import (
    MLM_HEADS,
    bidirectional_keys,
    encoder,
    norm,
    rank_keys,
    scorer,
    sizes,
)
from ollama_engine.convert.decoder import BLOCK
from ollama_engine.convert.rope import rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, rows_from
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES", "PLAIN_MLP", "POOLER", "RENAMES", "ROTATED", "roberta_sizes"]

RENAMES = (
    (r"^(?:bert|nomic_bert|roberta)\.", ""),
    (r"\.gamma$", ".weight"),
    (r"\.beta$", ".bias"),
    (r"^emb_ln\.", "embeddings.LayerNorm."),
)
DEFAULTS = {"norm_eps": 1e-12, "type_vocab_size": 2}
"""The epsilon has the last of its names, so that any name in config.json counts before it."""
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


def roberta_sizes(config: Config) -> dict[str, int]:
    return sizes(config) | {"n_before": config.whole("pad_token_id") + 1}


def _roberta_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    return {**_bert_keys(config, sizes), "context_length": sizes["n_ctx"] - sizes["n_before"]}


def _roberta_ranker_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    return {**_roberta_keys(config, sizes), **rank_keys(config, sizes)}


def _rotated_keys(config: Config, sizes: Sizes, activation: str, context: int) -> Mapping[str, Any]:
    """Keys of Nomic's models. `context`: what their longest text is, where n_positions says more than was trained."""
    _expect(config, "activation_function", activation, activation)
    _expect(config, "prenorm", False, False)
    _expect(config, "rotary_emb_fraction", 1.0, 1.0)
    _expect(config, "rotary_emb_interleaved", False, False)
    keys = {"rope.freq_base": float(config.number("rotary_emb_base", default=1000.0)), **rope_keys(config)}
    # What text-embed 1 and 1.5 say is reached by scaling the rotation, which the file does not; 2 was trained with 512.
    if config.get("n_positions") == 4 * context and config.number("max_trained_positions", default=2048) == 2048:
        keys["context_length"] = context
    return {**bidirectional_keys(config, sizes), **keys}


def _nomic_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    _expect(config, "hidden_act", "silu", "silu")
    return _rotated_keys(config, sizes, "swiglu", 2048)


def _nomic_moe_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    _expect(config, "moe_normalize_expert_weights", False, False)
    _expect(config, "expert_choice_router", False, False)
    _expect(config, "num_shared_experts", 0, 0)
    return {
        **_rotated_keys(config, sizes, "gelu", 512),
        "moe_every_n_layers": config.whole("moe_every_n_layers"),
        "expert_count": sizes["n_expert"],
        "expert_used_count": config.whole("moe_top_k"),
    }


def _nomic_moe_sizes(config: Config) -> dict[str, int]:
    n_expert = config.whole("num_experts", "num_local_experts")
    plain = sizes(config)
    return plain | {"n_expert": n_expert, "n_ff_all": n_expert * plain["n_ff"]}


def _has_experts(config: Config, layer: int) -> bool:
    return layer % config.whole("moe_every_n_layers") == 1


def _is_dense(config: Config, layer: int) -> bool:
    return not _has_experts(config, layer)


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

ROTATED = (
    *EMBEDDINGS,
    *linear(BLOCK + "attn_qkv", NOMIC + "attn.Wqkv", "qkv_size", "n_embd"),
    *linear(BLOCK + "attn_output", NOMIC + "attn.out_proj", "n_embd", "n_embd"),
    *norm(BLOCK + "attn_output_norm", NOMIC + "norm1"),
    *norm(BLOCK + "layer_output_norm", NOMIC + "norm2"),
)
"""All but the feed-forward blocks of models that rotate."""
PLAIN_MLP = (
    *linear(BLOCK + "ffn_up", NOMIC + "mlp.fc1", "n_ff", "n_embd"),
    *linear(BLOCK + "ffn_down", NOMIC + "mlp.fc2", "n_embd", "n_ff"),
)


def _of_experts(*, turned: bool) -> Transform:
    """One matrix for each expert, of those that lie behind each other; `turned`: with rows and columns exchanged."""

    def apply(values: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
        stacked = values.reshape(sizes["n_expert"], -1, values.shape[-1])
        return stacked.swapaxes(1, 2) if turned else stacked

    def shape(old: tuple[int, ...], sizes: Sizes) -> tuple[int, ...]:
        into, out = old[0] // sizes["n_expert"], old[1]
        return (sizes["n_expert"], *((out, into) if turned else (into, out)))

    return Transform(apply, shape, entrywise=False)


EXPERTS = (
    TensorMap(BLOCK + "ffn_gate_inp.weight", NOMIC + "mlp.router.layer.weight", ("n_expert", "n_embd")),
    TensorMap(BLOCK + "ffn_up_exps.weight", NOMIC + "mlp.experts.mlp.w1", ("n_ff_all", "n_embd"),
              _of_experts(turned=False)),
    TensorMap(BLOCK + "ffn_down_exps.weight", NOMIC + "mlp.experts.mlp.w2", ("n_ff_all", "n_embd"),
              _of_experts(turned=True)),
    TensorMap(BLOCK + "ffn_down_exps.bias", NOMIC + "mlp.experts.bias", ("n_embd",), optional=True),
)  # fmt: skip

ROBERTA = replace(
    BERT,
    classes=tuple(
        f"{stem}{kind}" for stem in ("Roberta", "XLMRoberta", "Camembert") for kind in ("Model", "ForMaskedLM")
    ),
    sizes=roberta_sizes,
    more_keys=_roberta_keys,
    defaults={**DEFAULTS, "pad_token_id": 1},
    tensors=tuple(
        replace(tensor, transform=rows_from("n_before")) if tensor.target == "position_embd.weight" else tensor
        for tensor in BERT.tensors
    ),
    ignored=(*BERT.ignored, r"^lm_head\."),
)

ARCHITECTURES = (
    BERT,
    ROBERTA,
    replace(
        ROBERTA,
        classes=tuple(f"{stem}ForSequenceClassification" for stem in ("Roberta", "XLMRoberta", "Camembert")),
        tensors=(*ROBERTA.tensors, *scorer("classifier.dense", "classifier.out_proj")),
        more_keys=_roberta_ranker_keys,
    ),
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
            *ROTATED,
            *linear(BLOCK + "ffn_up", NOMIC + "mlp.fc11", "n_ff", "n_embd"),
            *linear(BLOCK + "ffn_gate", NOMIC + "mlp.fc12", "n_ff", "n_embd"),
            *linear(BLOCK + "ffn_down", NOMIC + "mlp.fc2", "n_embd", "n_ff"),
        ),
        defaults=DEFAULTS,
        more_keys=_nomic_keys,
        renames=RENAMES,
        heads=(POOLER,),
    ),
    replace(
        encoder(
            "nomic-bert-moe",
            ("NomicBertModel",),
            (
                *ROTATED,
                *(replace(tensor, applies=_is_dense) for tensor in PLAIN_MLP),
                *(replace(tensor, applies=_has_experts) for tensor in EXPERTS),
            ),
            defaults=DEFAULTS,
            more_keys=_nomic_moe_keys,
            renames=RENAMES,
            heads=(POOLER,),
        ),
        fits=lambda config: bool(config.get("moe_every_n_layers")),
        sizes=_nomic_moe_sizes,
    ),
)
