"""Qwen2, Qwen2.5 and Qwen3 -> `general.architecture` = qwen2, qwen3, qwen2moe, qwen3moe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes, TensorMap, linear
from ollama_engine.convert.decoder import (
    ATTENTION,
    BLOCK,
    EMBEDDING,
    LAYER,
    MLP,
    OUTPUT,
    QK_NORM,
    experts,
    layer_types,
    norm,
    rope_and_size,
    sizes,
)
from ollama_engine.convert.keys import DECODER_KEYS
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES", "QWEN2"]

HEAD = (EMBEDDING, norm(BLOCK + "attn_norm", LAYER + "input_layernorm"))
MIDDLE = norm(BLOCK + "ffn_norm", LAYER + "post_attention_layernorm")
TAIL = (norm("output_norm", "model.norm"), OUTPUT)


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

QWEN2 = Architecture(
    name="qwen2",
    classes=("Qwen2ForCausalLM",),
    sizes=sizes,
    keys=DECODER_KEYS,
    tensors=(*HEAD, *ATTENTION, MIDDLE, *MLP, *TAIL),
    more_keys=_more_keys,
    pre_names=("qwen2",),
)

ARCHITECTURES = (
    QWEN2,
    Architecture(
        name="qwen3",
        classes=("Qwen3ForCausalLM",),
        sizes=sizes,
        keys=DECODER_KEYS,
        tensors=(*HEAD, *ATTENTION, *QK_NORM, MIDDLE, *MLP, *TAIL),
        more_keys=_more_keys,
        pre_names=("qwen2",),
    ),
    Architecture(
        name="qwen2moe",
        classes=("Qwen2MoeForCausalLM",),
        sizes=_expert_sizes,
        keys=DECODER_KEYS,
        tensors=(*HEAD, *ATTENTION, MIDDLE, *experts(), *SHARED, *TAIL),
        more_keys=_expert_keys,
        pre_names=("qwen2",),
    ),
    Architecture(
        name="qwen3moe",
        classes=("Qwen3MoeForCausalLM",),
        sizes=_expert_sizes,
        keys=DECODER_KEYS,
        tensors=(*HEAD, *ATTENTION, *QK_NORM, MIDDLE, *experts(), *TAIL),
        more_keys=_expert_keys,
        pre_names=("qwen2",),
    ),
)
