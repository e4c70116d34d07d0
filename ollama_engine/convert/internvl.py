"""InternVL 3 and 3.5 over Qwen -> `general.architecture` = internvl-qwen2, internvl-qwen3.

Folders of transformers' own class, whose names end with "-hf". Ollama's engine and llama.cpp have no single file of
these models, so the names of the architectures are our own, and those of the image part are in the dialect of `vision`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Architecture, Sizes, TensorMap, layered, linear
from ollama_engine.convert.clip import EPS, FLAT, activation_key
from ollama_engine.convert.qwen import QWEN2, QWEN3
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform
from ollama_engine.convert.vision import (
    IMAGE_TOKEN,
    affine,
    expect_each,
    expect_normalized,
    grid_side,
    image_part,
    side,
    whole_numbers,
)
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

CLASS = "InternVLForConditionalGeneration"
BICUBIC = 3
"""Pillow's number of the filter."""
TOWER, LAYER, BLOCK = "vision_tower.", "vision_tower.encoder.layer.{i}.", "v.blk.{i}."

FIRST = Transform(lambda values, sizes: values[0], lambda old, sizes: old[1:], entrywise=False)
"""The only entry of the first dimension."""


def _merge(config: Config) -> int:
    """Side of the square of patches that becomes one embedding."""
    ratio = config.number("downsample_ratio", default=0.5)
    if not 0 < ratio <= 1 or (1 / ratio) % 1:
        raise config.wrong(("downsample_ratio",), "1 / n", ratio)
    return int(1 / ratio)


def _vision_sizes(vision: Config, config: Config) -> Sizes:
    return {
        "v_places": grid_side(vision) ** 2 + 1,
        "v_merged": vision.whole("hidden_size") * _merge(config) ** 2,
    }


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect_each(vision, norm_type="layer_norm", use_qk_norm=False, use_mean_pooling=True,
                use_absolute_position_embeddings=True)  # fmt: skip
    expect_each(config, projector_hidden_act="gelu", vision_feature_layer=-1, vision_feature_select_strategy="default")
    return {**activation_key(vision), "vision.projector.scale_factor": _merge(config)}


def _image_keys(processor: Config) -> Mapping[str, Any]:
    """The published processor always cuts pictures into tiles, whatever `crop_to_patches` says."""
    expect_normalized(processor, BICUBIC)
    size = Config(processor.mapping("size"), f"{processor.home}: size")
    if size.values and size.get("height") != size.get("width"):
        raise UnsupportedModelError(f"{processor.home}: size is {size.values!r}; supported: a square")
    limits = {"vision.preproc_min_tiles": "min_patches", "vision.preproc_max_tiles": "max_patches"}
    return {
        **({"vision.tile_size": side(size, "height")} if size.values else {}),
        **whole_numbers(processor, limits),
    }


VISION = image_part(
    activation=("gelu", "gelu_pytorch_tanh", "quick_gelu"),
    defaults={
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_channels": 3, "image_size": 448, "patch_size": 14, "layer_norm_eps": 1e-6, "hidden_act": "gelu",
    },
    keys=(EPS,),
    outer_keys=(IMAGE_TOKEN,),
    more_sizes=_vision_sizes,
    more_keys=_vision_keys,
    image_keys=_image_keys,
    tensors=(
        TensorMap("v.class_embedding.weight", TOWER + "embeddings.cls_token", (1, 1, "v_embd"), FLAT),
        *affine("v.patch_embedding", TOWER + "embeddings.patch_embeddings.projection",
                "v_embd", "v_channels", "v_patch", "v_patch"),
        TensorMap("v.position_embedding.weight", TOWER + "embeddings.position_embeddings", (1, "v_places", "v_embd"),
                  FIRST),
        *layered(
            "v_layer",
            *affine(BLOCK + "layer_norm1", LAYER + "layernorm_before", "v_embd"),
            *(
                tensor
                for name in "qkv"
                for tensor in linear(f"{BLOCK}attn_{name}", f"{LAYER}attention.{name}_proj", "v_embd", "v_embd")
            ),
            *affine(BLOCK + "attn_output", LAYER + "attention.projection_layer", "v_embd", "v_embd"),
            TensorMap(BLOCK + "ls1.weight", LAYER + "lambda_1", ("v_embd",)),
            *affine(BLOCK + "layer_norm2", LAYER + "layernorm_after", "v_embd"),
            *affine(BLOCK + "mlp.fc1", LAYER + "mlp.fc1", "v_ff", "v_embd"),
            *affine(BLOCK + "mlp.fc2", LAYER + "mlp.fc2", "v_embd", "v_ff"),
            TensorMap(BLOCK + "ls2.weight", LAYER + "lambda_2", ("v_embd",)),
        ),
        *affine("mm.model.mlp.0", "multi_modal_projector.layer_norm", "v_merged"),
        *affine("mm.model.mlp.1", "multi_modal_projector.linear_1", "n_embd", "v_merged"),
        *affine("mm.model.mlp.3", "multi_modal_projector.linear_2", "n_embd", "n_embd"),
    ),
)  # fmt: skip


def _over(text: Architecture) -> Architecture:
    return replace(
        text,
        name=f"internvl-{text.name}",
        classes=(CLASS,),
        fits=lambda config: config.get("model_type") == text.name,
        vision=VISION,
    )


ARCHITECTURES = (_over(QWEN2), _over(QWEN3))
