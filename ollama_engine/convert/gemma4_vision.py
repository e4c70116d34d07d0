"""The parts of Gemma 4 that read images, in the names of llama.cpp's files, which Ollama has as well.

What hears is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.architecture import Key, Sizes, TensorMap, layered
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform
from ollama_engine.convert.vision import affine, expect, image_part, matrix, rope_base, side
from ollama_engine.errors import UnsupportedModelError

__all__ = ["UNIFIED_VISION", "VISION"]

DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16, "num_attention_heads": 12, "head_dim": 64,
    "num_channels": 3, "patch_size": 16, "pooling_kernel_size": 3, "position_embedding_size": 10240,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
V_BLOCK = "v.blk.{i}."
V_LAYER = "vision_tower.encoder.layers.{i}."

IMAGE_KEYS = (
    Key("image_start_token_id", "u32", ("boi_token_id",), required=False),
    Key("image_end_token_id", "u32", ("eoi_token_id",), required=False),
)


def _vision_sizes(vision: Config, config: Config) -> Sizes:
    width, n_head, head_dim = vision.whole("hidden_size"), vision.whole("num_attention_heads"), vision.whole("head_dim")
    if width != n_head * head_dim:
        raise UnsupportedModelError(f"{vision.home}: head_dim is not hidden_size / num_attention_heads")
    expect(vision, "num_key_value_heads", n_head, default=n_head)
    n_pixels = 3 * side(vision, "patch_size") ** 2
    return {"v_head_dim": head_dim, "v_positions": vision.whole("position_embedding_size"), "v_pixels": n_pixels}


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(config, "pad_token_id", 0, default=0)
    expect(vision, "hidden_activation", "gelu_pytorch_tanh", default="gelu_pytorch_tanh")
    base = rope_base(vision.completed({"rope_theta": 100.0}))
    if base != 100:
        raise UnsupportedModelError(f"{vision.home}: rope_theta is {base:g}, which GGUF has no key for; supported: 100")
    return {
        "vision.projector.scale_factor": vision.whole("pooling_kernel_size"),
        "vision.bidirectional": config.get("use_bidirectional_attention") == "vision",
    }


def _image_keys(processor: Config) -> Mapping[str, Any]:
    most = processor.get("max_soft_tokens")
    return {} if most is None else {"vision.max_soft_tokens": processor.whole("max_soft_tokens")}


def _square(pixels: NDArray[Any], sizes: Sizes) -> NDArray[Any]:
    """The pixels of a square in the last dimension (row, column, channel) -> (channel, row, column) in three."""
    side = math.isqrt(pixels.shape[-1] // 3)
    return np.ascontiguousarray(np.moveaxis(pixels.reshape(*pixels.shape[:-1], side, side, 3), -1, -3))


KERNEL = Transform(_square, lambda shape, sizes: (shape[0], 3, sizes["v_patch"], sizes["v_patch"]))
CHANNELS_FIRST = Transform(lambda pixels, sizes: _square(pixels, sizes).reshape(pixels.shape), entrywise=False)
ONE = Transform(lambda values, sizes: values.reshape(1), lambda shape, sizes: (1,), entrywise=False)


def _clamped(target: str, source: str, *shape: str) -> tuple[TensorMap, ...]:
    """A linear map, and the limits of its input and output where the checkpoint has them."""
    return (
        matrix(V_BLOCK + target, f"{V_LAYER}{source}.linear", *shape),
        *(
            TensorMap(f"{V_BLOCK}{target}.{limit}", f"{V_LAYER}{source}.{limit}", (), ONE, optional=True)
            for limit in ("input_min", "input_max", "output_min", "output_max")
        ),
    )


V_TENSORS = (
    matrix(V_BLOCK + "ln1", V_LAYER + "input_layernorm", "v_embd"),
    *_clamped("attn_q", "self_attn.q_proj", "v_embd", "v_embd"),
    *_clamped("attn_k", "self_attn.k_proj", "v_embd", "v_embd"),
    *_clamped("attn_v", "self_attn.v_proj", "v_embd", "v_embd"),
    *_clamped("attn_out", "self_attn.o_proj", "v_embd", "v_embd"),
    matrix(V_BLOCK + "attn_q_norm", V_LAYER + "self_attn.q_norm", "v_head_dim"),
    matrix(V_BLOCK + "attn_k_norm", V_LAYER + "self_attn.k_norm", "v_head_dim"),
    matrix(V_BLOCK + "attn_post_norm", V_LAYER + "post_attention_layernorm", "v_embd"),
    matrix(V_BLOCK + "ln2", V_LAYER + "pre_feedforward_layernorm", "v_embd"),
    *_clamped("ffn_gate", "mlp.gate_proj", "v_ff", "v_embd"),
    *_clamped("ffn_up", "mlp.up_proj", "v_ff", "v_embd"),
    *_clamped("ffn_down", "mlp.down_proj", "v_embd", "v_ff"),
    matrix(V_BLOCK + "ffn_post_norm", V_LAYER + "post_feedforward_layernorm", "v_embd"),
)
VISION = replace(
    image_part(
        activation="gelu_pytorch_tanh",
        defaults=DEFAULTS,
        keys=(Key("vision.attention.layer_norm_epsilon", "f32", ("rms_norm_eps",)),),
        outer_keys=IMAGE_KEYS,
        more_sizes=_vision_sizes,
        more_keys=_vision_keys,
        image_keys=_image_keys,
        tensors=(
            matrix("v.patch_embd", "vision_tower.patch_embedder.input_proj", "v_embd", "v_pixels",
                   transform=KERNEL),
            TensorMap("v.position_embd.weight", "vision_tower.patch_embedder.position_embedding_table",
                      (2, "v_positions", "v_embd")),
            *layered("v_layer", *V_TENSORS),
            TensorMap("v.std_bias", "vision_tower.std_bias", ("v_embd",), optional=True),
            TensorMap("v.std_scale", "vision_tower.std_scale", ("v_embd",), optional=True),
            matrix("mm.input_projection", "embed_vision.embedding_projection", "n_embd", "v_embd"),
        ),
    ),
    sources=r"^(?:model\.)?(?:vision_tower|embed_vision)\.",
)  # fmt: skip


# -- the 12B model, which has no tower ---------------------------------------------------------------------------------


def _unified_sizes(vision: Config, config: Config) -> Sizes:
    n_pixels = 3 * (side(vision, "patch_size") * vision.whole("pooling_kernel_size")) ** 2
    return {"v_positions": vision.whole("mm_posemb_size"), "v_pixels": n_pixels}


def _unified_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    text = config.outer.get("text_config", config.outer)
    return {
        "vision.projector.scale_factor": vision.whole("pooling_kernel_size"),
        # Where it is null, which it is not by default, images are causal.
        "vision.bidirectional": text.get("use_bidirectional_attention", "vision") == "vision",
    }


FLIPPED = Transform(
    lambda table, sizes: np.ascontiguousarray(table.swapaxes(0, 1)),
    lambda shape, sizes: (shape[1], shape[0], shape[2]),
    entrywise=False,
)
UNIFIED_VISION = replace(
    image_part(
        activation="gelu_pytorch_tanh",
        defaults={
            "mm_embed_dim": 3840, "mm_posemb_size": 1120, "patch_size": 16, "pooling_kernel_size": 3,
            "num_channels": 3, "rms_norm_eps": 1e-6,
            # llama.cpp's files have these keys, too.
            "num_hidden_layers": 0, "num_attention_heads": 0, "intermediate_size": 0,
        },
        keys=(Key("vision.attention.layer_norm_epsilon", "f32", ("rms_norm_eps",)),),
        outer_keys=IMAGE_KEYS,
        more_sizes=_unified_sizes,
        more_keys=_unified_keys,
        image_keys=_image_keys,
        tensors=(
            *affine("v.patch_norm.1", "vision_embedder.patch_ln1", "v_pixels", transform=CHANNELS_FIRST),
            matrix("v.patch_embd", "vision_embedder.patch_dense", "v_embd", "v_pixels", transform=CHANNELS_FIRST),
            TensorMap("v.patch_embd.bias", "vision_embedder.patch_dense.bias", ("v_embd",)),
            *affine("v.patch_norm.2", "vision_embedder.patch_ln2", "v_embd"),
            TensorMap("v.position_embd.weight", "vision_embedder.pos_embedding", ("v_positions", 2, "v_embd"), FLIPPED),
            *affine("v.patch_norm.3", "vision_embedder.pos_norm", "v_embd"),
            matrix("mm.input_projection", "embed_vision.embedding_projection", "n_embd", "v_embd"),
        ),
    ),
    sources=r"^(?:model\.)?(?:vision_embedder|embed_vision)\.",
)  # fmt: skip
