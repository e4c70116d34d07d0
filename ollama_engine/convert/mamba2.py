"""Mamba-2 -> `general.architecture` = mamba2."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes, TensorMap
from ollama_engine.convert.decoder import BLOCK, LAYER, OUTPUT, norm
from ollama_engine.convert.keys import require
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.state_space import state_space, state_space_keys, state_space_sizes

__all__ = ["ARCHITECTURES"]

CONTEXT = 2**20
"""llama.cpp writes this too: published models name no longest text."""


def _sizes(config: Config) -> dict[str, int]:
    return {
        "n_layer": config.whole("num_hidden_layers"),
        "n_embd": config.whole("hidden_size"),
        "n_vocab": config.whole("vocab_size"),
        **state_space_sizes(
            config.whole("num_heads"), config.whole("head_dim"), config.whole("n_groups"), config.whole("state_size"),
            config.whole("conv_kernel"),
        ),
    }  # fmt: skip


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    require(config, {"hidden_act": "silu"})
    return {
        "block_count": sizes["n_layer"],
        "context_length": config.whole("max_position_embeddings", default=CONTEXT),
        "embedding_length": sizes["n_embd"],
        # llama.cpp wants both keys.
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": config.number("layer_norm_epsilon", "rms_norm_eps"),
        **state_space_keys(sizes),
    }


ARCHITECTURES = (
    Architecture(
        name="mamba2",
        classes=("Mamba2ForCausalLM",),
        sizes=_sizes,
        keys=(),
        more_keys=_keys,
        defaults={"conv_kernel": 4, "state_size": 128, "head_dim": 64, "n_groups": 8, "layer_norm_epsilon": 1e-5},
        tensors=(
            TensorMap("token_embd.weight", "model.embeddings.weight", ("n_vocab", "n_embd")),
            norm(BLOCK + "attn_norm", LAYER + "norm"),
            *state_space(LAYER + "mixer."),
            norm("output_norm", "model.norm_f"),
            OUTPUT,
        ),
        renames=((r"^(?:model\.)?backbone\.", "model."), (r"^model\.embedding\.", "model.embeddings.")),
        pre_names=("olmo",),
    ),
)
