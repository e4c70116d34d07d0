"""gpt-oss -> `general.architecture` = gpt-oss.

Gate and up are the even and the odd rows of one matrix. As published, experts are MXFP4 and stay so; transformers
saves them as plain matrices that are transposed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Sizes, TensorMap
from ollama_engine.convert.decoder import ATTENTION, ATTN_NORM, BLOCK, LAYER, decoder, layer_types, norm
from ollama_engine.convert.rope import rope_keys
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import every_other, transpose
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

EXPERTS = LAYER + "mlp.experts."
ACTIVATION = {"swiglu_alpha": 1.702, "swiglu_limit": 7.0}


def _more_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    for name, value in ACTIVATION.items():
        if config.number(name, default=value) != value:
            raise UnsupportedModelError(f"{config.home}: {name} is {config.get(name)}, which GGUF has no key for")
    return {
        "rope.dimension_count": sizes["head_dim"],
        **rope_keys(config, truncate=False),
        "expert_feed_forward_length": sizes["n_ff"],
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": layer_types(config, lambda i: i % 2 == 0),
    }


def _experts() -> tuple[TensorMap, ...]:
    packed, plain, bias = (
        ("n_expert", "n_ff_twice", "n_embd"),
        ("n_expert", "n_embd", "n_ff_twice"),
        "gate_up_proj_bias",
    )
    halves = [
        tensor
        for which, name in enumerate(("gate", "up"))
        for tensor in (
            TensorMap(f"{BLOCK}ffn_{name}_exps.weight", EXPERTS + "gate_up_proj_packed", packed, every_other(which, 1)),
            TensorMap(
                f"{BLOCK}ffn_{name}_exps.weight", EXPERTS + "gate_up_proj", plain, every_other(which, 2, turned=True)
            ),
            TensorMap(
                f"{BLOCK}ffn_{name}_exps.bias", EXPERTS + bias, ("n_expert", "n_ff_twice"), every_other(which, 1)
            ),
        )
    ]
    return (
        TensorMap(BLOCK + "ffn_gate_inp.weight", LAYER + "mlp.router.weight", ("n_expert", "n_embd")),
        TensorMap(BLOCK + "ffn_gate_inp.bias", LAYER + "mlp.router.bias", ("n_expert",)),
        *halves,
        TensorMap(BLOCK + "ffn_down_exps.weight", EXPERTS + "down_proj_packed", ("n_expert", "n_embd", "n_ff")),
        TensorMap(BLOCK + "ffn_down_exps.weight", EXPERTS + "down_proj", ("n_expert", "n_ff", "n_embd"), transpose()),
        TensorMap(BLOCK + "ffn_down_exps.bias", EXPERTS + "down_proj_bias", ("n_expert", "n_embd")),
    )


ARCHITECTURES = (
    decoder(
        "gpt-oss",
        ("GptOssForCausalLM",),
        (
            ATTN_NORM,
            *ATTENTION,
            TensorMap(BLOCK + "attn_sinks.weight", LAYER + "self_attn.sinks", ("n_head",)),
            norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
            *_experts(),
        ),
        more_keys=_more_keys,
        pre_names=("gpt-4o",),
    ),
)
