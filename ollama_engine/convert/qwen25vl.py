"""Qwen2.5-VL and Qwen2-VL -> `general.architecture` = qwen25vl: a Qwen2 with positions of three axes, and its encoder.

Dialect: see `vision`. A patch of the encoder is two frames deep. The kernel over both is written as two flat ones,
whose results are to be added: ggml has no convolution over time that long. Queries, keys and values come from one
matrix, and become three. Nothing is rotated as pairs of neighbours, so no rows move.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes, TensorMap, layered
from ollama_engine.convert.qwen import QWEN2
from ollama_engine.convert.rope import mrope_sections
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import row_part, take
from ollama_engine.convert.vision import affine, expect, image_part, matrix, numbers, rope_base

__all__ = ["ARCHITECTURES", "FRAMES", "PATCHES", "TOKENS", "VISION_KEYS", "pixel_limits"]

VISION_DEFAULTS = {
    "depth": 32,
    "num_heads": 16,
    "in_channels": 3,
    "intermediate_size": 3420,
    "patch_size": 14,
    "temporal_patch_size": 2,
    "spatial_merge_size": 2,
    "window_size": 112,
    "fullatt_block_indexes": [7, 15, 23, 31],
    "tokens_per_second": 4,
}
FRAMES = 2
"""How deep a patch is: as many kernels are written."""

VISION_KEYS = (
    Key("vision.spatial_merge_size", "u32", ("spatial_merge_size",)),
    Key("vision.window_size", "u32", ("window_size",)),
    Key("vision.tokens_per_second", "u32", ("tokens_per_second",)),
)
TOKENS = tuple(
    Key(name, "u32", (name,), required=False)
    for name in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
)


def _text_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    sections = mrope_sections(config, sizes["head_dim"] // 2)
    return {**QWEN2.more_keys(config, sizes), "rope.mrope_section": sections}


def _vision_sizes(vision: Config, config: Config) -> Sizes:
    n_embd = vision.whole("hidden_size")
    return {"v_qkv": 3 * n_embd, "v_merged": n_embd * vision.whole("spatial_merge_size") ** 2}


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(vision, "temporal_patch_size", FRAMES, default=FRAMES)
    return {
        "vision.temporal_patch_size": FRAMES,
        "vision.fullatt_block_indexes": numbers(vision, "fullatt_block_indexes", sizes["v_layer"]),
        "vision.attention.layer_norm_epsilon": 1e-6,  # the same number in all that was published, and in no config
        "vision.rope.freq_base": rope_base(vision),
    }


def pixel_limits(processor: Config) -> Mapping[str, Any]:
    """The limits of pixels. Older files have names of their own for them, which win, as in transformers."""
    size = Config(processor.mapping("size"), f"{processor.home}: size")
    limits = {}
    for name, edge in (("min_pixels", "shortest_edge"), ("max_pixels", "longest_edge")):
        value = processor.whole(name, default=size.whole(edge, default=None))
        if value is not None:
            limits[f"vision.{name}"] = value
    return limits


def _older_sizes(vision: Config, config: Config) -> Sizes:
    """Qwen2-VL's `hidden_size` is that of the text model."""
    n_embd = vision.whole("embed_dim")
    merged = n_embd * vision.whole("spatial_merge_size") ** 2
    return {"v_embd": n_embd, "v_ff": n_embd * vision.whole("mlp_ratio"), "v_qkv": 3 * n_embd, "v_merged": merged}


def _older_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(vision, "temporal_patch_size", FRAMES, default=FRAMES)
    return {
        "vision.embedding_length": sizes["v_embd"],
        "vision.feed_forward_length": sizes["v_ff"],
        "vision.temporal_patch_size": FRAMES,
        "vision.attention.layer_norm_epsilon": 1e-6,
        "vision.rope.freq_base": rope_base(vision),
    }


def _attention() -> tuple[TensorMap, ...]:
    block, source = "v.blk.{i}.", "visual.blocks.{i}."
    split = [
        tensor
        for which, name in enumerate("qkv")
        for tensor in affine(block + f"attn_{name}", source + "attn.qkv", "v_qkv", "v_embd",
                             transform=row_part(which, 3))
    ]  # fmt: skip
    return *split, *affine(block + "attn_out", source + "attn.proj", "v_embd", "v_embd")


def _block() -> tuple[TensorMap, ...]:
    block, source = "v.blk.{i}.", "visual.blocks.{i}."
    return layered(
        "v_layer",
        matrix(block + "ln1", source + "norm1", "v_embd"),
        *_attention(),
        matrix(block + "ln2", source + "norm2", "v_embd"),
        *affine(block + "ffn_gate", source + "mlp.gate_proj", "v_ff", "v_embd"),
        *affine(block + "ffn_up", source + "mlp.up_proj", "v_ff", "v_embd"),
        *affine(block + "ffn_down", source + "mlp.down_proj", "v_embd", "v_ff"),
    )


def _older_block() -> tuple[TensorMap, ...]:
    block, source = "v.blk.{i}.", "visual.blocks.{i}."
    return layered(
        "v_layer",
        *affine(block + "ln1", source + "norm1", "v_embd"),
        *_attention(),
        *affine(block + "ln2", source + "norm2", "v_embd"),
        *affine(block + "ffn_up", source + "mlp.fc1", "v_ff", "v_embd"),
        *affine(block + "ffn_down", source + "mlp.fc2", "v_embd", "v_ff"),
    )


def _patches(frame: int) -> TensorMap:
    shape = ("v_embd", "v_channels", FRAMES, "v_patch", "v_patch")
    return TensorMap(f"v.patch_embd_{frame}.weight", "visual.patch_embed.proj.weight", shape, take(frame, 2))


PATCHES = tuple(map(_patches, range(FRAMES)))
MERGER = (
    *affine("v.merger.mlp.0", "visual.merger.mlp.0", "v_merged", "v_merged"),
    *affine("v.merger.mlp.2", "visual.merger.mlp.2", "n_embd", "v_merged"),
)
VISION = image_part(
    activation="silu",
    defaults=VISION_DEFAULTS,
    keys=VISION_KEYS,
    outer_keys=TOKENS,
    more_sizes=_vision_sizes,
    more_keys=_vision_keys,
    image_keys=pixel_limits,
    tensors=(*PATCHES, *_block(), matrix("v.merger.ln_q", "visual.merger.ln_q", "v_embd"), *MERGER),
)
OLDER_VISION = image_part(
    activation="quick_gelu",
    defaults={**VISION_DEFAULTS, "embed_dim": 1280, "mlp_ratio": 4},
    keys=VISION_KEYS[:1],
    outer_keys=TOKENS,
    more_sizes=_older_sizes,
    more_keys=_older_keys,
    image_keys=pixel_limits,
    tensors=(*PATCHES, *_older_block(), *affine("v.merger.ln_q", "visual.merger.ln_q", "v_embd"), *MERGER),
)
QWEN25VL = replace(
    QWEN2,
    name="qwen25vl",
    classes=("Qwen2_5_VLForConditionalGeneration",),
    more_keys=_text_keys,
    vision=VISION,
)
ARCHITECTURES = (QWEN25VL, replace(QWEN25VL, classes=("Qwen2VLForConditionalGeneration",), vision=OLDER_VISION))
