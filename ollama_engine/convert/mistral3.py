"""Mistral Small 3.1 and later, and Pixtral 12B, with Pixtral's encoder -> `general.architecture` = mistral3.

Dialect: see `vision`. The text part is a Llama, whose queries and keys become pairs of neighbours. Those of the encoder
stay as they are: in files of this dialect it rotates halves, and llama.cpp's separate files have them as pairs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes, TensorMap, layered, linear
from ollama_engine.convert.llama import LLAMA
from ollama_engine.convert.rope import MAGNITUDE, rope_parameters
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.vision import attention, expect, image_part, matrix, rope_base

__all__ = ["ARCHITECTURES", "VISION"]

VISION_DEFAULTS = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "num_channels": 3,
    "hidden_act": "gelu",  # which is refused: published files say silu
    "image_size": 1540,
    "patch_size": 14,
}
OUTER_KEYS = (
    Key("spatial_merge_size", "u32", ("spatial_merge_size",)),
    Key("image_token_index", "u32", ("image_token_index", "image_token_id"), required=False),
    Key("image_break_token_index", "u32", ("image_break_token_id",), required=False),
    Key("image_end_token_index", "u32", ("image_end_token_id",), required=False),
    Key("mm.projector_bias", "bool", ("multimodal_projector_bias",), required=False),
    Key("mm.projector_hidden_act", "str", ("projector_hidden_act",), required=False),
)


def _text_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    """Llama's, and how Ministral 3 sharpens attention far from the start, under both names that it has."""
    rope = rope_parameters(config)
    keys = dict(LLAMA.more_keys(config, sizes))
    if rope.get("llama_4_scaling_beta"):
        beta = float(rope["llama_4_scaling_beta"])
        keys |= {"attention.temperature_scale": beta, "rope.scaling_beta": beta}
    if rope.get("mscale_all_dim"):
        keys["rope.scaling.yarn_log_multiplier"] = float(rope["mscale_all_dim"])
        keys["rope.scaling.mscale"] = float(rope.get("mscale") or 0)
        if rope.get("attention_factor") is None:
            keys.pop(MAGNITUDE, None)  # these two keys say the same
    return keys


def _vision_sizes(vision: Config, config: Config) -> Sizes:
    return {"v_merged": vision.whole("hidden_size") * config.whole("spatial_merge_size") ** 2}


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(config, "vision_feature_layer", -1, [-1], default=-1)
    head_dim = sizes["v_embd"] // max(1, sizes["v_head"])
    return {
        "vision.attention.key_length": vision.whole("head_dim", default=head_dim),
        "vision.attention.layer_norm_epsilon": 1e-5,  # written into the encoder's code in transformers, in no config
        "vision.rope.freq_base": rope_base(vision),
    }


def _image_keys(processor: Config) -> Mapping[str, Any]:
    size = Config(processor.mapping("size"), f"{processor.home}: size")
    longest = size.whole("longest_edge", default=None)
    return {} if longest is None else {"vision.longest_edge": longest}


def _block() -> tuple[TensorMap, ...]:
    block, source = "v.blk.{i}.", "vision_tower.transformer.layers.{i}."
    return layered(
        "v_layer",
        matrix(block + "attn_norm", source + "attention_norm", "v_embd"),
        *attention(block, source + "attention", bias=False),
        matrix(block + "ffn_norm", source + "ffn_norm", "v_embd"),
        matrix(block + "ffn_gate", source + "feed_forward.gate_proj", "v_ff", "v_embd"),
        matrix(block + "ffn_up", source + "feed_forward.up_proj", "v_ff", "v_embd"),
        matrix(block + "ffn_down", source + "feed_forward.down_proj", "v_embd", "v_ff"),
    )


def _has_pixtral(config: Config) -> bool:
    return bool(config.mapping("vision_config").get("model_type") == "pixtral")


def _pixtral_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(config, "vision_feature_select_strategy", "full", default="default")
    expect(config, "projector_hidden_act", "gelu", default="gelu")
    return _vision_keys(vision, config, sizes)


MERGER = "patch_merger.merging_layer"
TOWER = (
    matrix("v.patch_conv", "vision_tower.patch_conv", "v_embd", "v_channels", "v_patch", "v_patch"),
    matrix("v.encoder_norm", "vision_tower.ln_pre", "v_embd"),
    *_block(),
)
PROJECTION = (
    *linear("mm.linear_1", "multi_modal_projector.linear_1", "n_embd", "v_embd"),
    *linear("mm.linear_2", "multi_modal_projector.linear_2", "n_embd", "n_embd"),
)
VISION = image_part(
    activation="silu",
    defaults=VISION_DEFAULTS,
    outer_keys=OUTER_KEYS,
    more_sizes=_vision_sizes,
    more_keys=_vision_keys,
    image_keys=_image_keys,
    tensors=(
        *TOWER,
        matrix("mm.norm", "multi_modal_projector.norm", "v_embd"),
        matrix(f"mm.{MERGER}", f"multi_modal_projector.{MERGER}", "v_embd", "v_merged"),
        *PROJECTION,
    ),
)
MISTRAL3 = replace(
    LLAMA,
    name="mistral3",
    classes=("Mistral3ForConditionalGeneration",),
    defaults={"spatial_merge_size": 2},
    more_keys=_text_keys,
    pre_names=("tekken",),
    vision=VISION,
)
PIXTRAL = replace(
    MISTRAL3,
    classes=("LlavaForConditionalGeneration",),
    fits=_has_pixtral,
    defaults={"spatial_merge_size": 1},
    vision=image_part(
        activation="silu",
        defaults={**VISION_DEFAULTS, "image_size": 1024, "patch_size": 16},
        outer_keys=OUTER_KEYS,
        more_keys=_pixtral_keys,
        image_keys=_image_keys,
        tensors=(*TOWER, *PROJECTION),
    ),
)
"""Pixtral 12B: the same tower, whose patches do not merge. LLaVA has the same class, and another tower."""

ARCHITECTURES = (MISTRAL3, PIXTRAL)
