"""Llama 1 to 3.x, Mistral, Mixtral and InternLM 3 -> `general.architecture` = llama.

SmolLM3 and Arcee, whose tensors are Llama's or fewer, have names of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Architecture, Key, Sizes, TensorMap, decoder_sizes, linear
from ollama_engine.convert.decoder import requiring, rope_and_size
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import half, pair_heads

__all__ = ["ARCHITECTURES", "LLAMA"]

BLOCK = "blk.{i}."
LAYER = "model.layers.{i}."


def _dense(config: Config, layer: int) -> bool:
    return config.whole("num_local_experts", default=0) == 0


def _sparse(config: Config, layer: int) -> bool:
    return not _dense(config, layer)


def _smollm3_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"use_sliding_window": False})
    n_layer, period = sizes["n_layer"], config.whole("no_rope_layer_interval", default=4)
    rotates = config.get("no_rope_layers") or [int((i + 1) % period != 0) for i in range(n_layer)]
    if not isinstance(rotates, list) or len(rotates) != n_layer or not all(turned in (0, 1) for turned in rotates):
        raise config.wrong(("no_rope_layers",), f"{n_layer} of 0 and 1", rotates)
    keys = rope_and_size(config, sizes)
    if all(bool(turned) == ((i + 1) % 4 != 0) for i, turned in enumerate(rotates)):
        return keys  # llama.cpp knows this pattern by heart
    return {**keys, "attention.rope_pattern": [bool(turned) for turned in rotates]}


def _feed_forward(target: str, name: str, shape: tuple[str, str]) -> tuple[TensorMap, ...]:
    """One matrix of the dense block, with the bias that some relatives have."""
    source = f"{LAYER}mlp.{name}"
    return (
        TensorMap(f"{BLOCK}{target}.weight", f"{source}.weight", shape, applies=_dense),
        TensorMap(f"{BLOCK}{target}.bias", f"{source}.bias", shape[:1], optional=True, applies=_dense),
    )


EXPERTS = (
    TensorMap(BLOCK + "ffn_gate_inp.weight", LAYER + "block_sparse_moe.gate.weight", ("n_expert", "n_embd"),
           applies=_sparse),
    TensorMap(BLOCK + "ffn_gate_exps.weight", LAYER + "block_sparse_moe.experts.{e}.w1.weight", ("n_ff", "n_embd"),
           applies=_sparse),
    TensorMap(BLOCK + "ffn_up_exps.weight", LAYER + "block_sparse_moe.experts.{e}.w3.weight", ("n_ff", "n_embd"),
           applies=_sparse),
    TensorMap(BLOCK + "ffn_down_exps.weight", LAYER + "block_sparse_moe.experts.{e}.w2.weight", ("n_embd", "n_ff"),
           applies=_sparse),
    # The same as transformers 5 holds them in memory.
    TensorMap(BLOCK + "ffn_gate_inp.weight", LAYER + "mlp.gate.weight", ("n_expert", "n_embd"), applies=_sparse),
    TensorMap(BLOCK + "ffn_gate_exps.weight", LAYER + "mlp.experts.gate_up_proj", ("n_expert", "n_ff_twice", "n_embd"),
           half(0, 1), applies=_sparse),
    TensorMap(BLOCK + "ffn_up_exps.weight", LAYER + "mlp.experts.gate_up_proj", ("n_expert", "n_ff_twice", "n_embd"),
           half(1, 1), applies=_sparse),
    TensorMap(BLOCK + "ffn_down_exps.weight", LAYER + "mlp.experts.down_proj", ("n_expert", "n_embd", "n_ff"),
           applies=_sparse),
)  # fmt: skip

TENSORS = (
    TensorMap("token_embd.weight", "model.embed_tokens.weight", ("n_vocab", "n_embd")),
    TensorMap(BLOCK + "attn_norm.weight", LAYER + "input_layernorm.weight", ("n_embd",)),
    *linear(BLOCK + "attn_q", LAYER + "self_attn.q_proj", "q_size", "n_embd", pair_heads("n_head")),
    *linear(BLOCK + "attn_k", LAYER + "self_attn.k_proj", "kv_size", "n_embd", pair_heads("n_head_kv")),
    *linear(BLOCK + "attn_v", LAYER + "self_attn.v_proj", "kv_size", "n_embd"),
    *linear(BLOCK + "attn_output", LAYER + "self_attn.o_proj", "n_embd", "q_size"),
    TensorMap(BLOCK + "ffn_norm.weight", LAYER + "post_attention_layernorm.weight", ("n_embd",)),
    *_feed_forward("ffn_gate", "gate_proj", ("n_ff", "n_embd")),
    *_feed_forward("ffn_up", "up_proj", ("n_ff", "n_embd")),
    *_feed_forward("ffn_down", "down_proj", ("n_embd", "n_ff")),
    *EXPERTS,
    TensorMap("output_norm.weight", "model.norm.weight", ("n_embd",)),
    TensorMap("output.weight", "lm_head.weight", ("n_vocab", "n_embd"), optional=True),
)

LLAMA = Architecture(
    name="llama",
    classes=("LlamaForCausalLM", "LLaMAForCausalLM", "LlamaModel", "MistralForCausalLM", "MixtralForCausalLM",
             "InternLM3ForCausalLM"),
    sizes=lambda config: (sizes := decoder_sizes(config)) | {"n_ff_twice": 2 * sizes["n_ff"]},
    keys=(*DECODER_KEYS, Key("vocab_size", "u32", ("vocab_size",)),
          Key("attention.sliding_window", "u32", ("sliding_window",), required=False)),
    tensors=TENSORS,
    more_keys=rope_and_size,
    llama3_rope=True,
    pre_names=("llama-bpe",),
)  # fmt: skip

SMOLLM3 = replace(
    LLAMA,
    name="smollm3",
    classes=("SmolLM3ForCausalLM",),
    keys=(*DECODER_KEYS, Key("vocab_size", "u32", ("vocab_size",))),
    more_keys=_smollm3_keys,
)
ARCEE = replace(
    LLAMA,
    name="arcee",
    classes=("ArceeForCausalLM",),
    tensors=tuple(tensor for tensor in TENSORS if "ffn_gate" not in tensor.target),
    more_keys=requiring({"hidden_act": "relu2"}),
)

ARCHITECTURES = (LLAMA, SMOLLM3, ARCEE)
