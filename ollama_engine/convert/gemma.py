"""Gemma 2, Gemma 3 and EmbeddingGemma -> `general.architecture` = gemma2, gemma3, gemma-embedding.

Norms are published as differences from 1, and so is the one between images and text; those inside of the encoder are
not. Dialect of the part that reads images: see `vision`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import COMMON_RENAMES, Architecture, Key, Sizes, TensorMap
from ollama_engine.convert.clip import SIGLIP_DEFAULTS, tower_block
from ollama_engine.convert.decoder import (
    ATTENTION,
    ATTN_NORM,
    BLOCK,
    LAYER,
    MLP,
    QK_NORM,
    decoder,
    layer_types,
    local_rope_keys,
    norm,
    rope_and_size,
    sizes,
)
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import add
from ollama_engine.convert.vision import affine, grid_side, image_part, matrix
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]


def _windows(config: Config, period: int) -> Mapping[str, Any]:
    period = config.whole("sliding_window_pattern", "_sliding_window_pattern", default=period)
    local = layer_types(config, lambda i: period == 0 or (i + 1) % period != 0)
    if not any(local):
        return {}
    return {
        "attention.sliding_window": config.whole("sliding_window"),
        "attention.sliding_window_pattern": local,
        "attention.scale": config.number("query_pre_attn_scalar", default=256) ** -0.5,
    }


def _gemma2_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    caps = {
        name: float(config.number(name, default=0)) for name in ("attn_logit_softcapping", "final_logit_softcapping")
    }
    return {**rope_and_size(config, sizes), **_windows(config, 2), **caps}


def _gemma3_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModelError(
            f"{config.home}: use_bidirectional_attention is on: an embedding model is a Gemma3TextModel"
        )
    return _keys(config, sizes)


def _embedding_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    if config.get("use_bidirectional_attention") is not True:
        raise UnsupportedModelError(
            f"{config.home}: use_bidirectional_attention is off: this is a Gemma 3 without its output; supported: "
            "Gemma3ForCausalLM, and EmbeddingGemma, where it is on"
        )
    return {"attention.causal": False, **_keys(config, sizes)}


def _keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    for cap in ("attn_logit_softcapping", "final_logit_softcapping"):
        if config.get(cap):
            raise UnsupportedModelError(f"{config.home}: {cap} is {config.get(cap)}; Gemma 3 has no soft caps")
    return {**rope_and_size(config, sizes), **local_rope_keys(config), **_windows(config, 6)}


def _embedding_sizes(config: Config) -> dict[str, int]:
    return sizes(config) | {"n_dense": config.whole("dense_2_feat_out", default=0)}


def _shifted(made: Architecture) -> Architecture:
    """Norms are published as differences from 1; GGUF stores factors."""
    shifted = (replace(t, transform=add(1.0)) if re.search(r"norm\.weight$", t.source) else t for t in made.tensors)
    return replace(made, tensors=tuple(shifted))


def _block(qk_norm: tuple[TensorMap, ...]) -> tuple[TensorMap, ...]:
    return (
        ATTN_NORM,
        *ATTENTION,
        *qk_norm,
        norm(BLOCK + "post_attention_norm", LAYER + "post_attention_layernorm"),
        norm(BLOCK + "ffn_norm", LAYER + "pre_feedforward_layernorm"),
        *MLP,
        norm(BLOCK + "post_ffw_norm", LAYER + "post_feedforward_layernorm"),
    )


GEMMA3_DEFAULTS = {
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "rope_local_base_freq": 1e4,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
}

# -- the part that reads images ----------------------------------------------------------------------------------------

IMAGE_KEYS = (
    Key("mm.tokens_per_image", "u32", ("mm_tokens_per_image",), required=False),
    Key("image_token_id", "u32", ("image_token_index", "image_token_id"), required=False),
    Key("image_start_token_id", "u32", ("boi_token_index",), required=False),
    Key("image_end_token_id", "u32", ("eoi_token_index",), required=False),
)

PROJECTION = "mm_input_projection"
GEMMA3_VISION = image_part(
    activation="gelu_pytorch_tanh",
    defaults=SIGLIP_DEFAULTS,
    keys=(Key("vision.attention.layer_norm_epsilon", "f32", ("layer_norm_eps",)),),
    outer_keys=IMAGE_KEYS,
    more_sizes=lambda vision, config: {"v_places": grid_side(vision) ** 2},
    tensors=(
        *affine("v.patch_embedding", "vision_tower.embeddings.patch_embedding",
                "v_embd", "v_channels", "v_patch", "v_patch"),
        matrix("v.position_embedding", "vision_tower.embeddings.position_embedding", "v_places", "v_embd"),
        *tower_block("vision_tower.encoder.layers.{i}."),
        *affine("v.post_layernorm", "vision_tower.post_layernorm", "v_embd"),
        matrix("mm.mm_soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm", "v_embd", transform=add(1.0)),
        # It is multiplied from the right, and stays that way round.
        TensorMap(f"mm.{PROJECTION}.weight", f"multi_modal_projector.{PROJECTION}_weight", ("v_embd", "n_embd")),
    ),
)  # fmt: skip

DENSE = (
    TensorMap("dense_2.weight", "dense_2.linear.weight", ("n_dense", "n_embd"), optional=True),
    TensorMap("dense_3.weight", "dense_3.linear.weight", ("n_embd", "n_dense"), optional=True),
)
"""EmbeddingGemma's layers behind the pooling."""
DENSE_KEYS = tuple(
    Key(f"dense_{n}_feat_{way}", "u32", (f"dense_{n}_feat_{way}",), required=False)
    for n in (2, 3)
    for way in ("in", "out")
)

GEMMA2 = decoder("gemma2", ("Gemma2ForCausalLM",), _block(()), more_keys=_gemma2_keys)
GEMMA3 = replace(
    _shifted(decoder("gemma3", ("Gemma3ForCausalLM",), _block(QK_NORM), more_keys=_gemma3_keys)),
    defaults=GEMMA3_DEFAULTS,
    renames=((r"^((?:model\.)?vision_tower\.)vision_model\.", r"\1"), *COMMON_RENAMES),
    ignored=(r"^(?:model\.)?vision_tower\.(?:vision_model\.)?head\.",),  # SigLIP's own classifier
)
EMBEDDING = replace(
    GEMMA3,
    name="gemma-embedding",
    classes=("Gemma3TextModel",),
    sizes=_embedding_sizes,
    keys=(*GEMMA3.keys, *DENSE_KEYS),
    more_keys=_embedding_keys,
    tensors=(*(tensor for tensor in GEMMA3.tensors if tensor.target != "output.weight"), *DENSE),
)
ARCHITECTURES = (
    _shifted(GEMMA2),
    EMBEDDING,
    replace(GEMMA3, classes=("Gemma3ForConditionalGeneration",), vision=GEMMA3_VISION),
    GEMMA3,
)
