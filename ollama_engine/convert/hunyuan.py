"""Hunyuan, dense and with experts -> `general.architecture` = hunyuan-dense, hunyuan-moe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Sizes, TensorMap, decoder_sizes
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    FFN_NORM,
    LAYER,
    MLP,
    decoder,
    experts,
    shared_expert,
)
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.rope import rope_keys, rope_parameters
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]


def _one(config: Config, *names: str, default: int | None = None) -> int:
    """A number, or a list of the same number for each layer."""
    value = config.get(*names, default=default)
    numbers = value if isinstance(value, list) else [value]
    if not numbers or any(n != numbers[0] or not isinstance(n, int) for n in numbers):
        raise UnsupportedModelError(f"{config.home}: {names[0]} is {value}; GGUF has one number for all layers")
    return int(numbers[0])


def _rope(config: Config, sizes: Sizes) -> dict[str, Any]:
    """The rotation. A fixed `alpha` stretches its base, whatever the length of a text, though it is called dynamic."""
    rope = rope_parameters(config)
    size = {"rope.dimension_count": sizes["head_dim"]}
    if rope["rope_type"] != "dynamic" or not rope.get("alpha"):
        return {**size, **rope_keys(config)}
    base = float(rope.get("rope_theta", 10000.0)) * float(rope["alpha"]) ** (
        sizes["head_dim"] / (sizes["head_dim"] - 2)
    )
    return {**size, "rope.freq_base": base, "rope.scaling.type": "none"}


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu", "use_cla": False})
    return _rope(config, sizes)


def _sparse_sizes(config: Config) -> dict[str, int]:
    plain = decoder_sizes(config)
    hidden = _one(config, "moe_intermediate_size", default=plain["n_ff"])
    shared = plain["n_ff"] * _one(config, "num_shared_expert", default=1)
    return {
        **plain, "n_expert": _one(config, "num_experts"), "n_ff_exp": hidden, "n_ff_exp_twice": 2 * hidden,
        "n_ff_shexp": shared,
    }  # fmt: skip


def _sparse_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    return {
        **_more_keys(config, sizes),
        "expert_count": sizes["n_expert"],
        "expert_used_count": _one(config, "moe_topk", "num_experts_per_tok"),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_feed_forward_length": sizes["n_ff_shexp"],
        "expert_shared_count": _one(config, "num_shared_expert", default=1),
    }


KEYS = tuple(key for key in DECODER_KEYS if not key.name.startswith("expert"))
NORMED_ATTENTION = (
    ATTN_NORM,
    *ATTENTION,
    TensorMap(BLOCK + "attn_q_norm.weight", LAYER + "self_attn.query_layernorm.weight", ("head_dim",)),
    TensorMap(BLOCK + "attn_k_norm.weight", LAYER + "self_attn.key_layernorm.weight", ("head_dim",)),
    FFN_NORM,
)
ROUTER = TensorMap(BLOCK + "ffn_gate_inp.weight", LAYER + "mlp.gate.wg.weight", ("n_expert", "n_embd"))

ARCHITECTURES = (
    decoder(
        "hunyuan-dense",
        ("HunYuanDenseV1ForCausalLM",),
        (*NORMED_ATTENTION, *MLP),
        keys=KEYS,
        more_keys=_more_keys,
        pre_names=("hunyuan-dense",),
    ),
    decoder(
        "hunyuan-moe",
        ("HunYuanMoEV1ForCausalLM",),
        (*NORMED_ATTENTION, ROUTER, *experts()[1:], *shared_expert("mlp.shared_mlp")),
        sizes=_sparse_sizes,
        keys=KEYS,
        more_keys=_sparse_keys,
        pre_names=("hunyuan",),
    ),
)
