"""The vision tower of CLIP, as `nn.clip` reads it: its tensors, and how pictures are prepared for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ollama_engine.convert.architecture import Tensor, layered
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.vision import affine, attention, expect, matrix
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ACTIVATIONS", "CLIP_DEFAULTS", "activation_key", "preprocessor_keys", "tower"]

CLIP_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "layer_norm_eps": 1e-5,
    "hidden_act": "quick_gelu",
}
ACTIVATIONS = {"quick_gelu": "quick_gelu", "gelu": "gelu", "gelu_pytorch_tanh": "gelu_tanh"}
"""Names in config.json -> those that engines read."""

RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of its filters."""


def activation_key(vision: Config) -> Mapping[str, Any]:
    """How the tower's feed-forward blocks are activated."""
    return {"vision.activation": ACTIVATIONS[vision.get("hidden_act")]}


def tower(source: str, *, class_token: bool = True) -> tuple[Tensor, ...]:
    """All tensors of the tower below `source` in the checkpoint. Only a tower with a class token norms its input."""
    first = (
        Tensor("v.class_embedding.weight", f"{source}embeddings.class_embedding", ("v_embd",)),
        *affine("v.pre_layernorm", f"{source}pre_layrnorm", "v_embd"),
    )
    shape = ("v_embd", "v_channels", "v_patch", "v_patch")
    return (
        *(first if class_token else ()),
        matrix("v.patch_embedding", f"{source}embeddings.patch_embedding", *shape),
        Tensor("v.patch_embedding.bias", f"{source}embeddings.patch_embedding.bias", ("v_embd",), optional=True),
        matrix("v.position_embedding", f"{source}embeddings.position_embedding", "v_places", "v_embd"),
        *_block(f"{source}encoder.layers.{{i}}."),
        *affine("v.post_layernorm", f"{source}post_layernorm", "v_embd"),
    )


def _block(source: str) -> tuple[Tensor, ...]:
    block = "v.blk.{i}."
    return layered(
        "v_layer",
        *affine(block + "layer_norm1", source + "layer_norm1", "v_embd"),
        *attention(block, source + "self_attn", "out_proj"),
        *affine(block + "layer_norm2", source + "layer_norm2", "v_embd"),
        *affine(block + "mlp.fc1", source + "mlp.fc1", "v_ff", "v_embd"),
        *affine(block + "mlp.fc2", source + "mlp.fc2", "v_embd", "v_ff"),
    )


def preprocessor_keys(processor: Config) -> Mapping[str, Any]:
    """How pictures become squares, as the published processor does it; CLIP's defaults where nothing is said.

    Raises UnsupportedModelError for a processor whose pictures are no squares, or are not normalized.
    """
    for name in ("do_resize", "do_rescale", "do_normalize"):
        expect(processor, name, True, default=True)
    expect(processor, "rescale_factor", 1 / 255, 0.00392156862745098, default=1 / 255)
    expect(processor, "resample", *RESAMPLING, default=3)
    return {
        "vision.image_aspect_ratio": _fit(processor),
        "vision.image_resample": RESAMPLING[processor.get("resample", default=3)],
    }


def _fit(processor: Config) -> str:
    size = processor.get("size", default={"shortest_edge": 224})
    tiles = processor.get("image_grid_pinpoints") is not None
    if processor.get("do_pad") and not tiles:  # with tiles it says that short lists of them are filled up
        return "pad"
    if isinstance(size, Mapping) and {"height", "width"} <= set(size) and size["height"] == size["width"]:
        return "stretch"
    shortest = isinstance(size, int) or (isinstance(size, Mapping) and set(size) == {"shortest_edge"})
    if not shortest or not processor.get("do_center_crop", default=True):
        raise UnsupportedModelError(
            f"{processor.home}: size is {size!r} and do_center_crop {processor.get('do_center_crop')!r}; supported: a "
            "square, or shortest_edge with do_center_crop"
        )
    return "crop"
