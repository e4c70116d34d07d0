"""Falcon-H1 -> `general.architecture` = falcon-h1. Its multipliers become part of the weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import Architecture, Sizes, TensorMap
from ollama_engine.convert.decoder import ATTENTION, ATTN_NORM, BLOCK, EMBEDDING, LAYER, norm, rope_and_size
from ollama_engine.convert.decoder import sizes as decoder_sizes
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.state_space import state_space, state_space_keys, state_space_sizes
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

Factors = Callable[[Config, Sizes], NDArray[np.float32]]


def _numbers(config: Config, name: str, count: int) -> list[float]:
    """The multipliers that config.json has as `name`; 1 where it has none."""
    stored = config.get(name, default=[1.0] * count if count > 1 else 1.0)
    numbers = stored if isinstance(stored, list) else [stored]
    if len(numbers) != count or not all(type(number) in (int, float) for number in numbers):
        raise config.wrong((name,), f"{count} numbers", stored)
    return [float(number) for number in numbers]


def _product(*names: str) -> Factors:
    return lambda config, sizes: np.array(math.prod(_numbers(config, name, 1)[0] for name in names), np.float32)


def _mlp(which: int) -> Factors:
    return lambda config, sizes: np.array(_numbers(config, "mlp_multipliers", 2)[which], np.float32)


def _ssm_in(config: Config, sizes: Sizes) -> NDArray[np.float32]:
    """A factor for each row: of gates, inputs, what moves the states, what reads them, and step sizes."""
    group = sizes["n_groups"] * sizes["d_state"]
    lengths = (sizes["d_inner"], sizes["d_inner"], group, group, sizes["n_ssm_heads"])
    numbers = np.array(_numbers(config, "ssm_multipliers", 5), np.float32)
    return np.repeat(numbers, lengths)[:, None] * np.float32(_numbers(config, "ssm_in_multiplier", 1)[0])


FACTORS: Mapping[str, Factors] = {
    "attn_q": _product("attention_in_multiplier"),
    "attn_k": _product("attention_in_multiplier", "key_multiplier"),
    "attn_v": _product("attention_in_multiplier"),
    "attn_output": _product("attention_out_multiplier"),
    "ssm_in": _ssm_in,
    "ssm_out": _product("ssm_out_multiplier"),
    "ffn_gate": _mlp(0),
    "ffn_down": _mlp(1),
}
MLP = (
    TensorMap(BLOCK + "ffn_gate.weight", LAYER + "feed_forward.gate_proj.weight", ("n_ff", "n_embd")),
    TensorMap(BLOCK + "ffn_up.weight", LAYER + "feed_forward.up_proj.weight", ("n_ff", "n_embd")),
    TensorMap(BLOCK + "ffn_down.weight", LAYER + "feed_forward.down_proj.weight", ("n_embd", "n_ff")),
)


def _has_norm(config: Config, layer: int) -> bool:
    return bool(config.get("mamba_rms_norm", default=False))


def _multiplied(*tensors: TensorMap) -> tuple[TensorMap, ...]:
    """The tensors with their factors; linear maps have no biases (see `_keys`)."""
    weights = [tensor for tensor in tensors if not tensor.target.endswith(("ssm_in.bias", "ssm_out.bias"))]
    return tuple(
        replace(
            tensor, factors=FACTORS.get(tensor.target.removeprefix(BLOCK).removesuffix(".weight")),
            applies=_has_norm if "ssm_norm" in tensor.target else None,
        )
        for tensor in weights
        if not (tensor.target.startswith(BLOCK + "attn_") and tensor.target.endswith(".bias"))
    )  # fmt: skip


def _sizes(config: Config) -> dict[str, int]:
    plain, n_heads = decoder_sizes(config), config.whole("mamba_n_heads")
    d_inner = config.whole("mamba_d_ssm", default=config.whole("mamba_expand", default=2) * plain["n_embd"])
    if n_heads < 1 or d_inner % n_heads:
        raise config.wrong(("mamba_n_heads",), f"a divisor of {d_inner}", n_heads)
    return plain | state_space_sizes(
        n_heads, d_inner // n_heads, config.whole("mamba_n_groups", default=1), config.whole("mamba_d_state"),
        config.whole("mamba_d_conv", default=4),
    )  # fmt: skip


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    biases = ("attention_bias", "mlp_bias", "projectors_bias", "mamba_proj_bias")
    require(config, {"hidden_act": "silu", **dict.fromkeys(biases, False)})
    if _has_norm(config, 0) and config.get("mamba_norm_before_gate", default=True):
        raise UnsupportedModelError(f"{config.home}: mamba_norm_before_gate is on, and GGUF files have the gate first")
    return {
        **rope_and_size(config, sizes),
        **state_space_keys(sizes),
        "attention.key_length": sizes["head_dim"],
        "attention.value_length": sizes["head_dim"],
    }


def _output(source: str) -> TensorMap:
    return TensorMap("output.weight", source, ("n_vocab", "n_embd"), factors=_product("lm_head_multiplier"))


ARCHITECTURES = (
    Architecture(
        llama3_rope=True,
        name="falcon-h1",
        classes=("FalconH1ForCausalLM",),
        sizes=_sizes,
        keys=DECODER_KEYS,
        more_keys=_keys,
        tensors=(
            replace(EMBEDDING, factors=_product("embedding_multiplier")),
            ATTN_NORM,
            *_multiplied(*ATTENTION, *state_space(LAYER + "mamba."), *MLP),
            replace(norm(BLOCK + "ffn_norm", LAYER + "pre_ff_layernorm"), target=BLOCK + "ffn_norm"),
            norm("output_norm", "model.final_layernorm"),
            _output("lm_head.weight"),
            _output("model.embed_tokens.weight"),
        ),
        pre_names=("falcon-h1",),
    ),
)
