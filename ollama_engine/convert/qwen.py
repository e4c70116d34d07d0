"""Qwen2, Qwen2.5 and Qwen3 -> `general.architecture` = qwen2, qwen3, qwen2moe, qwen3moe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    FFN_NORM,
    LAYER,
    MLP,
    QK_NORM,
    decoder,
    experts,
    layer_types,
    rope_and_size,
    sizes,
)
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES", "QWEN2"]


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("use_sliding_window") and any(layer_types(config, lambda i: i >= config.whole("max_window_layers"))):
        raise UnsupportedModelError(f"{config.home}: use_sliding_window is on, which GGUF has no key for in qwen")
    return rope_and_size(config, sizes)


def _expert_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("mlp_only_layers") or config.whole("decoder_sparse_step", default=1) != 1:
        raise UnsupportedModelError(f"{config.home}: mlp_only_layers or decoder_sparse_step make some layers dense")
    shared = config.whole("shared_expert_intermediate_size", default=0)
    return {
        **_more_keys(config, sizes),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        # Read by Ollama, and by us. llama.cpp has one answer for each architecture: those of the published models.
        "norm_top_k_prob": bool(config.get("norm_topk_prob", default=False)),
        **({"expert_shared_feed_forward_length": shared} if shared else {}),
    }


def _expert_sizes(config: Config) -> dict[str, int]:
    return sizes(config) | {"n_ff_shexp": config.whole("shared_expert_intermediate_size", default=0)}


SHARED = (
    TensorMap(BLOCK + "ffn_gate_inp_shexp.weight", LAYER + "mlp.shared_expert_gate.weight", (1, "n_embd")),
    *linear(BLOCK + "ffn_gate_shexp", LAYER + "mlp.shared_expert.gate_proj", "n_ff_shexp", "n_embd"),
    *linear(BLOCK + "ffn_up_shexp", LAYER + "mlp.shared_expert.up_proj", "n_ff_shexp", "n_embd"),
    *linear(BLOCK + "ffn_down_shexp", LAYER + "mlp.shared_expert.down_proj", "n_embd", "n_ff_shexp"),
)

QWEN2_ATTENTION = (ATTN_NORM, *ATTENTION, FFN_NORM)
QWEN3_ATTENTION = (ATTN_NORM, *ATTENTION, *QK_NORM, FFN_NORM)


def _qwen(name: str, class_name: str, *block: TensorMap) -> Architecture:
    return decoder(name, (class_name,), block, more_keys=_more_keys, pre_names=("qwen2",))


def _qwen_moe(name: str, class_name: str, *block: TensorMap) -> Architecture:
    return replace(_qwen(name, class_name, *block), sizes=_expert_sizes, more_keys=_expert_keys)


QWEN2 = _qwen("qwen2", "Qwen2ForCausalLM", *QWEN2_ATTENTION, *MLP)
ARCHITECTURES = (
    QWEN2,
    _qwen("qwen3", "Qwen3ForCausalLM", *QWEN3_ATTENTION, *MLP),
    _qwen_moe("qwen2moe", "Qwen2MoeForCausalLM", *QWEN2_ATTENTION, *experts(), *SHARED),
    _qwen_moe("qwen3moe", "Qwen3MoeForCausalLM", *QWEN3_ATTENTION, *experts()),
)
