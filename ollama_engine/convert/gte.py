"""GTE 1.5 and multilingual, Arctic Embed 2 M -> `general.architecture` = gte, which llama.cpp does not know.

Published configs are those of code beside the weights ("NewModel", "GteModel"), or of transformers 5, which has other
names for the rotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Sizes, TensorMap, linear
from ollama_engine.convert.bert import EMBEDDINGS, POOLER
from ollama_engine.convert.bidirectional import MLM_HEADS, bidirectional_keys, encoder, norm, rank_keys, scorer
from ollama_engine.convert.decoder import BLOCK
from ollama_engine.convert.keys import require
from ollama_engine.convert.rope import rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import row_part
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

LAYER = "encoder.layer.{i}."
FREQUENCY_BASE = 160000.0


def _rope(config: Config, sizes: Sizes) -> dict[str, Any]:
    """The rotation. Fixed "ntk" scaling stretches its base, and slows all pairs down by the same factor."""
    scaling, base = config.mapping("rope_scaling"), float(config.number("rope_theta", default=FREQUENCY_BASE))
    if scaling.get("type") != "ntk":
        return {"rope.freq_base": base, **rope_keys(config)}
    factor, head_dim = scaling.get("factor"), sizes["n_embd"] // sizes["n_head"]
    if not isinstance(factor, (int, float)) or scaling.get("mixed_b") is not None:
        raise UnsupportedModelError(f"{config.home}: rope_scaling of type ntk has a factor and no mixed_b: {scaling}")
    scale = factor ** (2 / head_dim)
    return {"rope.freq_base": base * factor, "rope.scaling.type": "linear", "rope.scaling.factor": scale}


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "gelu", "position_embedding_type": "rope", "layer_norm_type": "layer_norm"})
    require(config, {"logn_attention_scale": False, "pack_qkv": True})
    return {**bidirectional_keys(config, sizes), **_rope(config, sizes)}


def _ranker_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    return {**_keys(config, sizes), **rank_keys(config, sizes)}


GTE = encoder(
    "gte",
    ("NewModel", "NewForMaskedLM", "GteModel", "GteForMaskedLM"),
    (
        *EMBEDDINGS,
        *linear(BLOCK + "attn_qkv", LAYER + "attention.qkv_proj", "qkv_size", "n_embd"),
        *linear(BLOCK + "attn_output", LAYER + "attention.o_proj", "n_embd", "n_embd"),
        *norm(BLOCK + "attn_output_norm", LAYER + "attn_ln"),
        TensorMap(BLOCK + "ffn_up.weight", LAYER + "mlp.up_gate_proj.weight", ("n_ff_twice", "n_embd"), row_part(0, 2)),
        TensorMap(BLOCK + "ffn_gate.weight", LAYER + "mlp.up_gate_proj.weight", ("n_ff_twice", "n_embd"),
                  row_part(1, 2)),
        *linear(BLOCK + "ffn_down", LAYER + "mlp.down_proj", "n_embd", "n_ff"),
        *norm(BLOCK + "layer_output_norm", LAYER + "mlp_ln"),
    ),
    defaults={"norm_eps": 1e-12, "type_vocab_size": 1},
    more_keys=_keys,
    renames=((r"^(?:new|gte)\.", ""),),
    heads=(POOLER, r"^lm_head\."),
)  # fmt: skip

ARCHITECTURES = (
    GTE,
    replace(
        GTE,
        classes=("NewForSequenceClassification", "GteForSequenceClassification"),
        tensors=(*GTE.tensors, *scorer("pooler.dense", "classifier")),
        more_keys=_ranker_keys,
        ignored=MLM_HEADS,
    ),
)
