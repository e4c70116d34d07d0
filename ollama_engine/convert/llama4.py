"""Llama 4 Scout and Maverick -> `general.architecture` = llama4.

Dialect: see `vision`. Queries and keys are published as pairs of neighbours already, in text and images alike: no rows
move. Experts come all in one, with rows and columns exchanged and gate beside up, or one by one in quantized releases.
Patches of an image are unfolded before the encoder: its first matrix is no convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import Key, Sizes, TensorMap, layered
from ollama_engine.convert.decoder import ATTENTION, ATTN_NORM, BLOCK, FFN_NORM, LAYER, decoder, sizes
from ollama_engine.convert.keys import DECODER_KEYS
from ollama_engine.convert.llama import LLAMA
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, half, transpose
from ollama_engine.convert.vision import affine, attention, expect, grid_side, image_part, matrix, rope_base, side
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

TEXT_DEFAULTS = {
    "head_dim": 128,
    "intermediate_size_mlp": 16384,
    "interleave_moe_layer_step": 1,
    "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192,
    "attn_temperature_tuning": True,
    "floor_scale": 8192,
    "attn_scale": 0.1,
    "use_qk_norm": True,
}
VISION_DEFAULTS = {
    "num_hidden_layers": 34,
    "num_attention_heads": 16,
    "num_channels": 3,
    "intermediate_size": 5632,
    "image_size": 448,
    "patch_size": 14,
    "norm_eps": 1e-5,
    "pixel_shuffle_ratio": 0.5,
    "projector_input_dim": 4096,
    "projector_output_dim": 4096,
    "vision_output_dim": 7680,
}
TEXT_KEYS = (
    *(key for key in DECODER_KEYS if key.name != "feed_forward_length"),
    Key("vocab_size", "u32", ("vocab_size",)),
    # intermediate_size is that of an expert.
    Key("feed_forward_length", "u32", ("intermediate_size_mlp",)),
    Key("expert_feed_forward_length", "u32", ("intermediate_size",)),
    Key("interleave_moe_layer_step", "u32", ("interleave_moe_layer_step",)),
    Key("attention.scale", "f32", ("attn_scale",)),
    Key("attention.floor_scale", "u32", ("floor_scale",)),
    Key("use_qk_norm", "bool", ("use_qk_norm",)),
)
VISION_KEYS = (
    Key("vision.layer_norm_epsilon", "f32", ("norm_eps",)),
    Key("vision.pixel_shuffle_ratio", "f32", ("pixel_shuffle_ratio",)),
)
TOKENS = tuple(
    Key(f"{name}_token_id", "u32", (f"{source}_token_index", f"{source}_token_id"), required=False)
    for name, source in (("image", "image"), ("image_start", "boi"), ("image_end", "eoi"))
)


# -- the text part -----------------------------------------------------------------------------------------------------


def _sparse(config: Config, layer: int) -> bool:
    step = config.whole("interleave_moe_layer_step")
    if step < 1 and config.whole("num_local_experts", default=0):
        raise config.wrong(("interleave_moe_layer_step",), "at least 1 for a model with experts", step)
    return step > 0 and (layer + 1) % step == 0


def _dense(config: Config, layer: int) -> bool:
    return not _sparse(config, layer)


def _text_sizes(config: Config) -> Sizes:
    hidden = config.whole("intermediate_size")
    return {
        **sizes(config),
        "n_ff": config.whole("intermediate_size_mlp"),
        "n_ff_exp": hidden,
        "n_ff_exp_twice": 2 * hidden,
    }


def _text_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    layers = range(sizes["n_layer"])
    # Without a layer that has no positions, some releases leave the interval at its default.
    interval = 0 if config.get("no_rope_layers") == [1] * len(layers) else config.whole("no_rope_layer_interval")
    rotated = [interval == 0 or (i + 1) % interval != 0 for i in layers]
    _check_layers(config, "moe_layers", [i for i in layers if _sparse(config, i)])
    _check_layers(config, "no_rope_layers", [int(each) for each in rotated])
    return {
        **LLAMA.more_keys(config, sizes),
        "no_rope_interval": interval,
        "attention.chunk_size": _chunk_size(config, rotated),
        "attention.temperature_tuning": bool(config.get("attn_temperature_tuning")),
    }


def _chunk_size(config: Config, rotated: list[bool]) -> int:
    """Tokens of a chunk, 0 where all layers attend to all tokens. Chunks go with positions, or there are none."""
    if config.get("layer_types") == ["full_attention"] * len(rotated) or config.get("attention_chunk_size") is None:
        return 0
    _check_layers(config, "layer_types", ["chunked_attention" if each else "full_attention" for each in rotated])
    return config.whole("attention_chunk_size")


def _check_layers(config: Config, name: str, regular: list[int] | list[str]) -> None:
    """Layers that are listed one by one must be those that the keys tell; an empty list stands for these."""
    listed = config.get(name)
    if listed and listed != regular:
        raise UnsupportedModelError(
            f"{config.home}: {name} is {listed!r:.80}, which GGUF has no key for; supported: {regular!r:.80}"
        )


FEED_FORWARD = LAYER + "feed_forward."
SHAPES = {"gate": ("n_ff", "n_embd"), "up": ("n_ff", "n_embd"), "down": ("n_embd", "n_ff")}


def _dense_part() -> tuple[TensorMap, ...]:
    return tuple(
        TensorMap(f"{BLOCK}ffn_{name}.weight", f"{FEED_FORWARD}{name}_proj.weight", shape, applies=_dense)
        for name, shape in SHAPES.items()
    )


def _experts() -> tuple[TensorMap, ...]:
    fused = ("n_expert", "n_embd", "n_ff_exp_twice")
    single = {name: tuple(size.replace("n_ff", "n_ff_exp") for size in shape) for name, shape in SHAPES.items()}

    def weight(target: str, source: str, shape: tuple[str, ...], transform: Transform | None = None) -> TensorMap:
        return TensorMap(f"{BLOCK}ffn_{target}.weight", FEED_FORWARD + source, shape, transform, applies=_sparse)

    return (
        weight("gate_inp", "router.weight", ("n_expert", "n_embd")),
        weight("gate_exps", "experts.gate_up_proj", fused, half(0, 2, turned=True)),
        weight("up_exps", "experts.gate_up_proj", fused, half(1, 2, turned=True)),
        weight("down_exps", "experts.down_proj", ("n_expert", "n_ff_exp", "n_embd"), transpose()),
        *(weight(f"{name}_exps", f"experts.{{e}}.{name}_proj.weight", shape) for name, shape in single.items()),
        *(weight(f"{name}_shexp", f"shared_expert.{name}_proj.weight", shape) for name, shape in single.items()),
    )


# -- the part that reads images ----------------------------------------------------------------------------------------


def _vision_sizes(vision: Config, config: Config) -> Sizes:
    return {
        "v_unfolded": vision.whole("num_channels") * side(vision, "patch_size") ** 2,
        "v_places": grid_side(vision) ** 2 + 1,  # with one for the class
        "v_shuffled": vision.whole("intermediate_size"),
        "v_adapted": vision.whole("projector_input_dim"),
        "v_adapter_out": vision.whole("projector_output_dim"),
        "v_out": vision.whole("vision_output_dim"),
    }


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(vision, "vision_feature_select_strategy", "default", default="default")
    return {"vision.rope.freq_base": rope_base(vision)}


def _block() -> tuple[TensorMap, ...]:
    block, source = "v.blk.{i}.", "vision_model.model.layers.{i}."
    return layered(
        "v_layer",
        *affine(block + "attn_norm", source + "input_layernorm", "v_embd"),
        *attention(block, source + "self_attn"),
        *affine(block + "ffn_norm", source + "post_attention_layernorm", "v_embd"),
        *affine(block + "mlp.fc1", source + "mlp.fc1", "v_ff", "v_embd"),
        *affine(block + "mlp.fc2", source + "mlp.fc2", "v_embd", "v_ff"),
    )


ADAPTER = "vision_adapter.mlp."
VISION = image_part(
    activation="gelu",
    defaults=VISION_DEFAULTS,
    keys=VISION_KEYS,
    outer_keys=TOKENS,
    more_sizes=_vision_sizes,
    more_keys=_vision_keys,
    tensors=(
        matrix("v.patch_embedding", "vision_model.patch_embedding.linear", "v_embd", "v_unfolded"),
        TensorMap("v.class_embedding", "vision_model.class_embedding", ("v_embd",)),
        TensorMap("v.positional_embedding_vlm", "vision_model.positional_embedding_vlm", ("v_places", "v_embd")),
        *affine("v.layernorm_pre", "vision_model.layernorm_pre", "v_embd"),
        *_block(),
        *affine("v.layernorm_post", "vision_model.layernorm_post", "v_embd"),
        matrix(f"v.{ADAPTER}fc1", f"vision_model.{ADAPTER}fc1", "v_adapted", "v_shuffled"),
        matrix(f"v.{ADAPTER}fc2", f"vision_model.{ADAPTER}fc2", "v_adapter_out", "v_adapter_out"),
        matrix("mm.linear_1", "multi_modal_projector.linear_1", "n_embd", "v_out"),
    ),
)
TEXT = replace(
    decoder(
        "llama4",
        ("Llama4ForCausalLM",),
        (ATTN_NORM, *ATTENTION, FFN_NORM, *_dense_part(), *_experts()),
        sizes=_text_sizes,
        keys=TEXT_KEYS,
        more_keys=_text_keys,
        pre_names=("llama4", "gpt-4o"),
    ),
    defaults=TEXT_DEFAULTS,
)
ARCHITECTURES = (replace(TEXT, classes=("Llama4ForConditionalGeneration",), vision=VISION), TEXT)
