"""LLaVA 1.5 and 1.6 (LLaVA-NeXT) -> `general.architecture` = llava: a Llama or Mistral with CLIP's tower.

Ollama's engine and llama.cpp have no single file of these models, so the name of the architecture and those of the
image part are our own, in the dialect of `vision`. Blocks of the tower that the feature layer makes superfluous stay in
the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import COMMON_RENAMES, Key, Sizes, TensorMap, linear
from ollama_engine.convert.clip import ACTIVATIONS, CLIP_DEFAULTS, activation_key, preprocessor_keys, tower
from ollama_engine.convert.llama import LLAMA
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.vision import expect, image_part, side
from ollama_engine.errors import UnsupportedModelError

__all__ = ["ARCHITECTURES"]

TEXT_DEFAULTS = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32000,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
}
TEXTS = ("llama", "mistral")
OUTER_KEYS = (Key("image_token_index", "u32", ("image_token_index", "image_token_id"), required=False),)
TOWER = "vision_tower."
NEXT = "LlavaNextForConditionalGeneration"
RESOLUTIONS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
"""transformers' default."""


def _text_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(config, "model_type", *TEXTS, "llava", "llava_next", default=TEXTS[0])
    return LLAMA.more_keys(config, sizes)


def _feature_layers(config: Config, n_layer: int) -> list[int]:
    """After how many blocks hidden states are taken. As published, they are places in a list of all states."""
    given = config.get("vision_feature_layer", default=-2)
    listed = given if isinstance(given, list) else [given]
    if not listed or not all(type(n) is int and -n_layer - 1 <= n <= n_layer for n in listed):
        raise config.wrong(("vision_feature_layer",), f"places in a list of {n_layer + 1} hidden states", given)
    return [n % (n_layer + 1) for n in listed]


def _in_tiles(config: Config, layer: int = 0) -> bool:
    """Whether it is LLaVA 1.6."""
    return NEXT in config.get("architectures")


def _resolutions(config: Config) -> list[int]:
    """The sizes of pictures in tiles, [height, width, height, width, ...]; empty for LLaVA 1.5."""
    if not _in_tiles(config):
        return []
    listed = config.get("image_grid_pinpoints", default=RESOLUTIONS)
    if not isinstance(listed, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and all(type(n) is int and n > 0 for n in pair) for pair in listed
    ):
        raise config.wrong(("image_grid_pinpoints",), "pairs of a height and a width", listed)
    return [n for pair in listed for n in pair]


def _vision_sizes(vision: Config, config: Config) -> Sizes:
    n_layer = vision.whole("num_hidden_layers")
    grid = side(vision, "image_size") // side(vision, "patch_size")
    n_states = len(_feature_layers(config, n_layer))
    return {"v_places": grid**2 + 1, "v_features": vision.whole("hidden_size") * n_states}


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(vision, "model_type", "clip_vision_model", default="clip_vision_model")
    strategy = config.get("vision_feature_select_strategy", default="default")
    resolutions = _resolutions(config)
    if strategy not in ("default", "full") or (strategy == "full" and resolutions):
        raise UnsupportedModelError(
            f"{config.home}: vision_feature_select_strategy is {strategy!r}; supported: 'default', and 'full' without "
            "image_grid_pinpoints"
        )
    return {
        **activation_key(vision),
        "vision.feature_layer": _feature_layers(config, sizes["v_layer"]),
        "vision.keeps_class_token": strategy == "full",
        "mm.projector_hidden_act": _projector_activation(config),
        **({"vision.image_grid_pinpoints": resolutions} if resolutions else {}),
    }


def _projector_activation(config: Config) -> str:
    expect(config, "projector_hidden_act", *ACTIVATIONS, default="gelu")
    return ACTIVATIONS[config.get("projector_hidden_act", default="gelu")]


VISION = replace(
    image_part(
        activation=tuple(ACTIVATIONS),
        defaults=CLIP_DEFAULTS,
        keys=(Key("vision.attention.layer_norm_epsilon", "f32", ("layer_norm_eps",)),),
        outer_keys=OUTER_KEYS,
        more_sizes=_vision_sizes,
        more_keys=_vision_keys,
        image_keys=preprocessor_keys,
        tensors=(
            *tower(TOWER),
            *linear("mm.linear_1", "multi_modal_projector.linear_1", "n_embd", "v_features"),
            *linear("mm.linear_2", "multi_modal_projector.linear_2", "n_embd", "n_embd"),
            TensorMap("mm.image_newline.weight", "image_newline", ("n_embd",), applies=_in_tiles),
        ),
    ),
    sources=r"^(?:model\.)?(?:vision_tower\.|multi_modal_projector\.|image_newline$)",
)
ARCHITECTURES = (
    replace(
        LLAMA,
        name="llava",
        classes=("LlavaForConditionalGeneration", NEXT),
        defaults=TEXT_DEFAULTS,
        more_keys=_text_keys,
        renames=(
            (r"^((?:model\.)?vision_tower\.)vision_model\.", r"\1"),
            (r"^model\.(?=image_newline$)", ""),
            *COMMON_RENAMES,
        ),
        ignored=(r"\.embeddings\.position_ids$",),
        vision=VISION,
    ),
)
