"""What models with latent attention have in common (DeepSeek V2 and later, Kimi Linear): sizes, keys and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from numpy.typing import NDArray

from ollama_engine.convert.architecture import Sizes, TensorMap, linear
from ollama_engine.convert.decoder import BLOCK, LAYER
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform

__all__ = ["LATENT", "NARROW", "WIDE", "latent_keys", "latent_sizes", "only_narrow"]

SELF = LAYER + "self_attn."


def latent_sizes(config: Config, n_head: int) -> dict[str, int]:
    """Sizes of latent attention: see `models.latent_attention.LatentOptions`."""
    n_own, n_shared = config.whole("qk_nope_head_dim"), config.whole("qk_rope_head_dim")
    n_latent, value_dim = config.whole("kv_lora_rank"), config.whole("v_head_dim")
    return {
        "q_size": n_head * (n_own + n_shared), "n_own": n_own, "n_shared": n_shared, "n_latent": n_latent,
        "latent_key": n_latent + n_shared, "value_dim": value_dim, "values_size": n_head * value_dim,
        "expanded": n_head * (n_own + value_dim), "n_narrow": config.whole("q_lora_rank", default=0),
    }  # fmt: skip


def latent_keys(sizes: Sizes) -> Mapping[str, Any]:
    """The keys of these sizes: for llama.cpp, of one wide head that all queries share."""
    return {
        "attention.key_length": sizes["latent_key"],
        "attention.value_length": sizes["n_latent"],
        "attention.key_length_mla": sizes["n_own"] + sizes["n_shared"],
        "attention.value_length_mla": sizes["value_dim"],
        "attention.kv_lora_rank": sizes["n_latent"],
        "rope.dimension_count": sizes["n_shared"],
        **({"attention.q_lora_rank": sizes["n_narrow"]} if sizes["n_narrow"] else {}),
    }


def _of_heads(first: bool) -> Transform:
    """Maps from the latent vector to keys and values, [n_head * (n_own + value_dim), n_latent]: one of the two.

    That to keys is stored as what maps queries to the latent vector.
    """

    def apply(values: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
        heads = values.reshape(sizes["n_head"], sizes["n_own"] + sizes["value_dim"], -1)
        return heads[:, : sizes["n_own"]].swapaxes(1, 2) if first else heads[:, sizes["n_own"] :]

    def shape(old: tuple[int, ...], sizes: Sizes) -> tuple[int, ...]:
        n_head, n_latent = sizes["n_head"], sizes["n_latent"]
        return (n_head, n_latent, sizes["n_own"]) if first else (n_head, sizes["value_dim"], n_latent)

    return Transform(apply, shape, entrywise=False)


def _is_narrow(config: Config, layer: int) -> bool:
    return config.whole("q_lora_rank", default=0) > 0


def only_narrow(tensors: tuple[TensorMap, ...], *, narrow: bool) -> tuple[TensorMap, ...]:
    """Declarations for models whose queries are made of a shorter vector, or for the others."""
    return tuple(replace(t, applies=lambda config, layer: _is_narrow(config, layer) == narrow) for t in tensors)


LATENT = (
    *linear(BLOCK + "attn_kv_a_mqa", SELF + "kv_a_proj_with_mqa", "latent_key", "n_embd"),
    TensorMap(BLOCK + "attn_kv_a_norm.weight", SELF + "kv_a_layernorm.weight", ("n_latent",)),
    TensorMap(BLOCK + "attn_k_b.weight", SELF + "kv_b_proj.weight", ("expanded", "n_latent"), _of_heads(True)),
    TensorMap(BLOCK + "attn_v_b.weight", SELF + "kv_b_proj.weight", ("expanded", "n_latent"), _of_heads(False)),
    *linear(BLOCK + "attn_output", SELF + "o_proj", "n_embd", "values_size"),
)
WIDE = linear(BLOCK + "attn_q", SELF + "q_proj", "q_size", "n_embd")
NARROW = (
    *linear(BLOCK + "attn_q_a", SELF + "q_a_proj", "n_narrow", "n_embd"),
    TensorMap(BLOCK + "attn_q_a_norm.weight", SELF + "q_a_layernorm.weight", ("n_narrow",)),
    *linear(BLOCK + "attn_q_b", SELF + "q_b_proj", "q_size", "n_narrow"),
)
