"""ERNIE 4.5 -> `general.architecture` = ernie4_5, ernie4_5-moe.

Its checkpoints rotate neighbours already: no rows are moved.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes, TensorMap
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    FFN_NORM,
    LAYER,
    MLP,
    decoder,
    experts,
    only,
    requiring,
    rope_and_size,
    shared_expert,
    sizes,
)
from ollama_engine.convert.keys import DECODER_KEYS, require
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

FLAT = Transform(lambda values, sizes: values.reshape(-1), lambda old, sizes: (old[0] * old[1],), entrywise=False)


def _sparse(config: Config, layer: int) -> bool:
    every = config.whole("moe_layer_interval", default=1)
    return layer >= config.whole("moe_layer_start_index", default=1) and (layer + 1) % max(1, every) == 0


def _sparse_sizes(config: Config) -> dict[str, int]:
    plain = sizes(config)
    shared = config.whole("moe_num_shared_experts", default=0) * plain["n_ff_exp"]
    return {**plain, "n_expert": config.whole("moe_num_experts"), "n_ff_shexp": shared}


def _sparse_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu", "use_bias": False})
    last = config.get("moe_layer_end_index", default=-1)
    if last not in (-1, sizes["n_layer"] - 1):
        raise UnsupportedModelError(f"{config.home}: moe_layer_end_index is {last}, for which GGUF has no key")
    return {
        **rope_and_size(config, sizes),
        "expert_feed_forward_length": sizes["n_ff_exp"],
        "expert_shared_count": config.whole("moe_num_shared_experts", default=0),
        "expert_shared_feed_forward_length": sizes["n_ff_shexp"],
        "interleave_moe_layer_step": config.whole("moe_layer_interval", default=1),
        "leading_dense_block_count": config.whole("moe_layer_start_index", default=1),
    }


def _has_shared(config: Config, layer: int) -> bool:
    return _sparse(config, layer) and config.whole("moe_num_shared_experts", default=0) > 0


ARCHITECTURES = (
    decoder(
        "ernie4_5",
        ("Ernie4_5ForCausalLM", "Ernie4_5_ForCausalLM"),
        (ATTN_NORM, *ATTENTION, FFN_NORM, *MLP),
        more_keys=requiring({"hidden_act": "silu", "use_bias": False}),
    ),
    replace(
        decoder(
            "ernie4_5-moe",
            ("Ernie4_5_MoeForCausalLM",),
            (
                ATTN_NORM,
                *ATTENTION,
                FFN_NORM,
                *only(lambda config, i: not _sparse(config, i), *MLP),
                *experts(_sparse),
                TensorMap(
                    BLOCK + "exp_probs_b.bias", LAYER + "mlp.moe_statics.e_score_correction_bias", (1, "n_expert"),
                    FLAT, applies=_sparse,
                ),
                *only(_has_shared, *shared_expert("mlp.shared_experts")),
            ),
            sizes=_sparse_sizes,
            keys=(
                *(key for key in DECODER_KEYS if not key.name.startswith("expert")),
                Key("expert_count", "u32", ("moe_num_experts",)),
                Key("expert_used_count", "u32", ("moe_k",)),
            ),
            more_keys=_sparse_keys,
        ),
        # Blocks that predict tokens further ahead.
        ignored=(r"^model\.mtp_",),
    ),
)  # fmt: skip
