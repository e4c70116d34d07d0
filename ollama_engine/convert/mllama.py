"""Llama 3.2 Vision -> `general.architecture` = mllama: a Llama that looks at images in layers of their own.

Dialect: see `vision`. What is done to numbers:
- Gates of the encoder are stored as what they multiply with, tanh(gate). The one gate of the two position tables is
  stored twice: 1 - tanh for the table of patches, tanh for that of tiles. Gates of the text part stay as they are; the
  model takes their tanh.
- Queries and keys of the self-attention become pairs of neighbours, as in llama, and so do those of the encoder, which
  does not rotate: there the same order on both sides changes no score.
- Queries and keys of the cross-attention stay in order. They do not rotate either, but each number of a head has a
  weight in q_norm and k_norm. Ollama's converter moved the rows of the projections and not these weights. A reader
  tells such a file from ours, and puts the rows back, by the key `image_token_id`: ours always has it.

The embedding has eight rows more than there are logits; the first of them is the image's token.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from ollama_engine.convert.architecture import Architecture, Key, Sizes, TensorMap, decoder_sizes, layered
from ollama_engine.convert.llama import BLOCK, LAYER, LLAMA
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, apply_each, pair_heads
from ollama_engine.convert.vision import affine, grid_side, image_part, matrix, numbers

__all__ = ["ARCHITECTURES"]

EXTRA_ROWS = 8
"""Rows of the token embedding beyond the vocabulary; see the model's config class in transformers."""

VISION_DEFAULTS = {
    "num_hidden_layers": 32,
    "num_global_layers": 8,
    "attention_heads": 16,
    "hidden_size": 1280,
    "intermediate_size": 5120,
    "num_channels": 3,
    "image_size": 448,
    "patch_size": 14,
    "norm_eps": 1e-5,
    "max_num_tiles": 4,
    "intermediate_layers_indices": [3, 7, 15, 23, 30],
    "supported_aspect_ratios": [[1, 1], [1, 2], [1, 3], [1, 4], [2, 1], [2, 2], [3, 1], [4, 1]],
}
TEXT_DEFAULTS = {"cross_attention_layers": [3, 8, 13, 18, 23, 28, 33, 38]}

VISION_KEYS = (
    Key("vision.global.block_count", "u32", ("num_global_layers",)),
    Key("vision.attention.layer_norm_epsilon", "f32", ("norm_eps",)),
    Key("vision.max_num_tiles", "u32", ("max_num_tiles",)),
)
IMAGE_TOKEN = 128256
"""Where the config does not say; see the config class in transformers."""


# -- the text part -----------------------------------------------------------------------------------------------------


def _cross_layers(config: Config) -> list[int]:
    return numbers(config, "cross_attention_layers", config.whole("num_hidden_layers"))


def _looks(config: Config, layer: int) -> bool:
    return layer in _cross_layers(config)


def _attends(config: Config, layer: int) -> bool:
    return not _looks(config, layer)


def _text_sizes(config: Config) -> Sizes:
    sizes = decoder_sizes(config)
    return {**sizes, "n_logits": sizes["n_vocab"], "n_vocab": sizes["n_vocab"] + EXTRA_ROWS}


def _text_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    return {**LLAMA.more_keys(config, sizes), "attention.cross_attention_layers": _cross_layers(config)}


def _cross_attention() -> tuple[TensorMap, ...]:
    """Both gates have no ".weight" behind their names."""
    shapes = {
        "q_proj.weight": ("q_size", "n_embd"),
        "k_proj.weight": ("kv_size", "n_embd"),
        "v_proj.weight": ("kv_size", "n_embd"),
        "o_proj.weight": ("n_embd", "q_size"),
        "q_norm.weight": ("head_dim",),
        "k_norm.weight": ("head_dim",),
    }
    gates = (
        TensorMap(f"{BLOCK}cross_attn_{name}_gate", f"{LAYER}cross_attn_{name}_gate", (1,), applies=_looks)
        for name in ("attn", "mlp")
    )
    named = (
        TensorMap(f"{BLOCK}cross_attn_{name}", f"{LAYER}cross_attn.{name}", shape, applies=_looks)
        for name, shape in shapes.items()
    )
    return (*named, *gates)


def _text_tensors() -> tuple[TensorMap, ...]:
    """Llama's; some layers have cross-attention in place of self-attention, and the output has rows of its own."""
    tensors: list[TensorMap] = []
    for tensor in LLAMA.tensors:
        if "self_attn." in tensor.source:
            tensors.append(replace(tensor, applies=_attends))
        elif tensor.target == "output.weight":
            tensors.append(replace(tensor, shape=("n_logits", "n_embd"), optional=False))
        elif "_exps" not in tensor.target and "ffn_gate_inp" not in tensor.target:
            tensors.append(tensor)
        if tensor.target == BLOCK + "attn_norm.weight":
            tensors += _cross_attention()
    return tuple(tensors)


# -- the part that reads images ----------------------------------------------------------------------------------------


def _vision_sizes(vision: Config, config: Config) -> Sizes:
    n_embd, tiles = vision.whole("hidden_size"), vision.whole("max_num_tiles")
    places = grid_side(vision) ** 2 + 1  # with one for the class
    kept = numbers(vision, "intermediate_layers_indices", vision.whole("num_hidden_layers"))
    ratios = vision.get("supported_aspect_ratios")
    if not isinstance(ratios, list):
        raise vision.wrong(("supported_aspect_ratios",), "a list", ratios)
    return {
        "v_global_layer": vision.whole("num_global_layers"),
        "v_places": places,
        "v_tile_row": tiles * n_embd,
        "v_place_row": tiles * places * n_embd,
        "v_ratios": len(ratios) + 1,  # the first row is for tiles that are not there
        "v_out": n_embd * (1 + len(kept)),
    }


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    kept = numbers(vision, "intermediate_layers_indices", sizes["v_layer"])
    token = config.whole("image_token_index", "image_token_id", default=IMAGE_TOKEN)
    return {"vision.intermediate_layers_indices": kept, "image_token_id": token}


TANH = apply_each(np.tanh)
ONE_MINUS_TANH = apply_each(lambda gate: 1 - np.tanh(gate))


def _gate(target: str, source: str, transform: Transform = TANH) -> TensorMap:
    return TensorMap(target, source, (1,), transform)


def _block(layers: str, target: str, source: str) -> tuple[TensorMap, ...]:
    return layered(
        layers,
        *affine(target + "attn_norm", source + "input_layernorm", "v_embd"),
        matrix(target + "attn_q", source + "self_attn.q_proj", "v_embd", "v_embd", transform=pair_heads("v_head")),
        matrix(target + "attn_k", source + "self_attn.k_proj", "v_embd", "v_embd", transform=pair_heads("v_head")),
        matrix(target + "attn_v", source + "self_attn.v_proj", "v_embd", "v_embd"),
        matrix(target + "attn_output", source + "self_attn.o_proj", "v_embd", "v_embd"),
        *affine(target + "ffn_norm", source + "post_attention_layernorm", "v_embd"),
        *affine(target + "ffn_up", source + "mlp.fc1", "v_ff", "v_embd"),
        *affine(target + "ffn_down", source + "mlp.fc2", "v_embd", "v_ff"),
    )


def _tables() -> tuple[TensorMap, ...]:
    gated = "vision_model.gated_positional_embedding."
    tiles = [
        tensor
        for name in ("pre_tile", "post_tile")
        for tensor in (
            matrix(f"v.{name}_position_embd", f"vision_model.{name}_positional_embedding.embedding",
                   "v_ratios", "v_tile_row"),
            _gate(f"v.{name}_position_embd.gate", f"vision_model.{name}_positional_embedding.gate"),
        )
    ]  # fmt: skip
    return (
        TensorMap("v.class_embd", "vision_model.class_embedding", ("v_embd",)),
        TensorMap("v.position_embd.weight", gated + "embedding", ("v_places", "v_embd")),
        _gate("v.position_embd.gate", gated + "gate", ONE_MINUS_TANH),
        matrix("v.tile_position_embd", gated + "tile_embedding", "v_ratios", "v_place_row"),
        _gate("v.tile_position_embd.gate", gated + "gate"),
        *tiles,
    )


def _global_block() -> tuple[TensorMap, ...]:
    target, source = "v.global.blk.{i}.", "vision_model.global_transformer.layers.{i}."
    gates = (
        _gate(target + "attn_gate", source + "gate_attn"),
        _gate(target + "ffn_gate", source + "gate_ffn"),
    )
    return (*_block("v_global_layer", target, source), *layered("v_global_layer", *gates))


VISION = image_part(
    activation="gelu",
    defaults=VISION_DEFAULTS,
    keys=VISION_KEYS,
    more_sizes=_vision_sizes,
    more_keys=_vision_keys,
    tensors=(
        matrix("v.patch_embd", "vision_model.patch_embedding", "v_embd", "v_channels", "v_patch", "v_patch"),
        *_tables(),
        *affine("v.pre_ln", "vision_model.layernorm_pre", "v_embd"),
        *_block("v_layer", "v.blk.{i}.", "vision_model.transformer.layers.{i}."),
        *affine("v.post_ln", "vision_model.layernorm_post", "v_embd"),
        *_global_block(),
        *affine("mm.0", "multi_modal_projector", "n_embd", "v_out"),
    ),
)
ARCHITECTURES = (
    Architecture(
        name="mllama",
        classes=("MllamaForConditionalGeneration",),
        sizes=_text_sizes,
        keys=LLAMA.keys,
        defaults=TEXT_DEFAULTS,
        tensors=_text_tensors(),
        more_keys=_text_keys,
        llama3_rope=True,
        pre_names=LLAMA.pre_names,
        vision=VISION,
    ),
)
