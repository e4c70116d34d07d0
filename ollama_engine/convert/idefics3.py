"""Idefics 3 and SmolVLM -> `general.architecture` = idefics3: a Llama with SigLIP's tower.

Ollama's engine and llama.cpp have no single file of these models, so the name of the architecture is our own, and those
of the image part are in the dialect of `vision`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ollama_engine.convert.architecture import COMMON_RENAMES, Sizes
from ollama_engine.convert.clip import EPS, activation_key, tower
from ollama_engine.convert.llama import LLAMA
from ollama_engine.convert.llava import TEXT_DEFAULTS
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.vision import IMAGE_TOKEN, expect, expect_normalized, grid_side, image_part, matrix

__all__ = ["ARCHITECTURES"]

LANCZOS = 1
"""Pillow's number of the filter."""


def _text_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    expect(config, "model_type", "llama", "idefics3", "smolvlm", default="llama")
    return LLAMA.more_keys(config, sizes)


def _vision_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    return {**activation_key(vision), "vision.projector.scale_factor": config.whole("scale_factor", default=2)}


def _image_keys(processor: Config) -> Mapping[str, Any]:
    expect_normalized(processor, LANCZOS)
    edges = {"vision.preproc_image_size": "size", "vision.tile_size": "max_image_size"}
    given = {key: processor.mapping(name).get("longest_edge") for key, name in edges.items()}
    return {
        "vision.image_splitting": bool(processor.get("do_image_splitting", default=True)),
        **{key: edge for key, edge in given.items() if type(edge) is int},
    }


VISION = replace(
    image_part(
        activation=("gelu_pytorch_tanh", "gelu", "quick_gelu"),
        defaults={
            "hidden_size": 1152, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16,
            "num_channels": 3, "image_size": 224, "patch_size": 32, "layer_norm_eps": 1e-6,
            "hidden_act": "gelu_pytorch_tanh",
        },
        keys=(EPS,),
        outer_keys=(IMAGE_TOKEN,),
        more_sizes=lambda vision, config: {
            "v_places": grid_side(vision) ** 2,
            "v_merged": vision.whole("hidden_size") * config.whole("scale_factor", default=2) ** 2,
        },
        more_keys=_vision_keys,
        image_keys=_image_keys,
        tensors=(
            *tower("vision_model.", class_token=False),
            matrix("mm.model.fc", "connector.modality_projection.proj", "n_embd", "v_merged"),
        ),
    ),
    sources=r"^(?:model\.)?(?:vision_model|connector)\.",
)  # fmt: skip
ARCHITECTURES = (
    replace(
        LLAMA,
        name="idefics3",
        classes=("Idefics3ForConditionalGeneration", "SmolVLMForConditionalGeneration"),
        defaults={**TEXT_DEFAULTS, "rms_norm_eps": 1e-5},
        more_keys=_text_keys,
        renames=((r"^model\.text_model\.", "model."), (r"^model\.(?=connector\.)", ""), *COMMON_RENAMES),
        vision=VISION,
    ),
)
