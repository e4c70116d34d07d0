"""The vision tower of CLIP, as `nn.clip` reads it: its tensors, and how pictures are prepared for it.

CLIP and SigLIP themselves -> `general.architecture` = clip-dual, siglip-dual; a folder without a tokenizer ->
clip-vision, siglip-vision, without the half that reads texts. llama.cpp has no such files; "clip" is the name of its
projectors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ollama_engine.convert.architecture import Architecture, Key, Sizes, TensorMap, Vision, layered
from ollama_engine.convert.bidirectional import BIDIRECTIONAL_KEYS, NAMES
from ollama_engine.convert.sentence_modules import POOLING
from ollama_engine.convert.source.folder import Config
from ollama_engine.convert.transforms import Transform, row_part
from ollama_engine.convert.vision import (
    affine,
    attention,
    colours,
    expect,
    expect_normalized,
    grid_side,
    image_part,
    matrix,
)
from ollama_engine.convert.vocab.export import SENTENCEPIECE
from ollama_engine.errors import UnsupportedModelError

__all__ = [
    "ACTIVATIONS",
    "ARCHITECTURES",
    "CLIP_DEFAULTS",
    "EPS",
    "FLAT",
    "SIGLIP_DEFAULTS",
    "activation_key",
    "preprocessor_keys",
    "siglip_text_keys",
    "tower",
    "tower_block",
]

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

EPS = Key("vision.attention.layer_norm_epsilon", "f32", ("layer_norm_eps",))

RESAMPLING = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic"}
"""Pillow's numbers of its filters."""


def activation_key(vision: Config) -> Mapping[str, Any]:
    """How the tower's feed-forward blocks are activated."""
    return {"vision.activation": ACTIVATIONS[vision.get("hidden_act")]}


def tower(source: str, *, class_token: bool = True) -> tuple[TensorMap, ...]:
    """All tensors of the tower below `source` in the checkpoint. Only a tower with a class token norms its input."""
    first = (
        TensorMap("v.class_embedding.weight", f"{source}embeddings.class_embedding", ("v_embd",)),
        *affine("v.pre_layernorm", f"{source}pre_layrnorm", "v_embd"),
    )
    shape = ("v_embd", "v_channels", "v_patch", "v_patch")
    return (
        *(first if class_token else ()),
        matrix("v.patch_embedding", f"{source}embeddings.patch_embedding", *shape),
        TensorMap("v.patch_embedding.bias", f"{source}embeddings.patch_embedding.bias", ("v_embd",), optional=True),
        matrix("v.position_embedding", f"{source}embeddings.position_embedding", "v_places", "v_embd"),
        *tower_block(f"{source}encoder.layers.{{i}}."),
        *affine("v.post_layernorm", f"{source}post_layernorm", "v_embd"),
    )


def tower_block(source: str) -> tuple[TensorMap, ...]:
    """The tensors of one of its blocks; `source` ends with "{i}." for the number."""
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
    expect_normalized(processor)
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


# -- vectors of images -------------------------------------------------------------------------------------------------

VOCABULARIES = ("tokenizer.json", *SENTENCEPIECE)
TEXT_SIZES = ("n_layer", "n_embd", "n_ff", "n_ctx", "n_vocab")
BLOCK = "blk.{i}."
SIGLIP_DEFAULTS = {
    **CLIP_DEFAULTS,
    "patch_size": 16,
    "layer_norm_eps": 1e-6,
    "hidden_act": "gelu_pytorch_tanh",
}
SIGLIP_PROCESSOR = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": {"height": 224, "width": 224}}
"""Defaults of SigLIP's image processor, for configs that say nothing."""


FLAT = Transform(lambda values, sizes: values.reshape(-1), lambda old, sizes: old[2:], entrywise=False)
"""A vector that is published with two dimensions of 1 before its own."""


def _head() -> tuple[TensorMap, ...]:
    """SigLIP's pooling. Queries, keys and values come from one matrix, and become three."""
    head, source = "v.head.", "vision_model.head."
    split = [
        TensorMap(f"{head}attn_{name}.{part}", f"{source}attention.in_proj_{part}", shape, row_part(which, 3))
        for which, name in enumerate("qkv")
        for part, shape in (("weight", ("v_qkv", "v_embd")), ("bias", ("v_qkv",)))
    ]
    return (
        TensorMap(f"{head}probe.weight", f"{source}probe", (1, 1, "v_embd"), FLAT),
        *split,
        *affine(f"{head}attn_output", f"{source}attention.out_proj", "v_embd", "v_embd"),
        *affine(f"{head}layernorm", f"{source}layernorm", "v_embd"),
        *affine(f"{head}mlp.fc1", f"{source}mlp.fc1", "v_ff", "v_embd"),
        *affine(f"{head}mlp.fc2", f"{source}mlp.fc2", "v_embd", "v_ff"),
    )


LEFT_OUT = (r"^logit_(?:scale|bias)$", r"\.embeddings\.position_ids$")
TEXT = (r"^text_model\.", r"^text_projection\.")


def _image_encoder(name: str, class_name: str, part: Vision) -> Architecture:
    """The half that reads images, where nothing tells texts into tokens."""
    made = Architecture(
        name=name,
        classes=(class_name,),
        fits=lambda config: not any((Path(config.home).parent / file).exists() for file in VOCABULARIES),
        sizes=lambda config: {"n_layer": 0, "n_vocab": 0},
        keys=(),
        tensors=(),
        ignored=(*TEXT, *LEFT_OUT),
        renames=(),
        vision=part,
        reads_text=False,
    )
    return made.part(vision=True)


def _dual(
    name: str, class_name: str, part: Vision, defaults: Mapping[str, Any], projection: tuple[TensorMap, ...],
    more_keys: Callable[[Config, Sizes], Mapping[str, Any]],
) -> Architecture:  # fmt: skip
    """Both halves. SigLIP's text is padded, and attends to what follows, too."""
    layer = "text_model.encoder.layers.{i}."
    made = Architecture(
        name=name,
        classes=(class_name,),
        sizes=lambda config: {key: config.whole(*NAMES[key]) for key in TEXT_SIZES},
        keys=BIDIRECTIONAL_KEYS,
        tensors=(
            matrix("token_embd", "text_model.embeddings.token_embedding", "n_vocab", "n_embd"),
            matrix("position_embd", "text_model.embeddings.position_embedding", "n_ctx", "n_embd"),
            *affine(BLOCK + "attn_norm", layer + "layer_norm1", "n_embd"),
            *(
                tensor
                for target, source in {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output": "out_proj"}.items()
                for tensor in affine(f"{BLOCK}attn_{target}", f"{layer}self_attn.{source}", "n_embd", "n_embd")
            ),
            *affine(BLOCK + "ffn_norm", layer + "layer_norm2", "n_embd"),
            *affine(BLOCK + "ffn_up", layer + "mlp.fc1", "n_ff", "n_embd"),
            *affine(BLOCK + "ffn_down", layer + "mlp.fc2", "n_embd", "n_ff"),
            *affine("output_norm", "text_model.final_layer_norm", "n_embd"),
            *projection,
        ),
        defaults=defaults,
        more_keys=lambda config, sizes: {
            "activation": _known_activation(config), "pooling_type": POOLING["lasttoken"], **more_keys(config, sizes)
        },
        ignored=LEFT_OUT,
        renames=(),
        vision=part,
    )  # fmt: skip
    return made.part(vision=True)


def _known_activation(config: Config) -> str:
    expect(config, "hidden_act", *ACTIVATIONS, default="quick_gelu")
    return ACTIVATIONS[config.get("hidden_act")]


def siglip_text_keys(config: Config, sizes: Sizes) -> Mapping[str, Any]:
    """SigLIP 1 takes punctuation out of texts, by SentencePiece; SigLIP 2 has the vocabulary of Gemma."""
    return {
        "attention.causal": False,
        "tokenizer.ggml.padded_length": sizes["n_ctx"],
        "tokenizer.ggml.normalizer.lowercase": True,
        "tokenizer.ggml.normalizer.canonical": (Path(config.home).parent / "spiece.model").exists(),
    }


def _clip_keys(vision: Config, config: Config, sizes: Sizes) -> Mapping[str, Any]:
    return {**activation_key(vision), "vision.projection_dim": sizes["v_vector"]}


def _siglip_processor_keys(processor: Config) -> Mapping[str, Any]:
    whole = processor.completed(SIGLIP_PROCESSOR)
    return {**colours(whole), **preprocessor_keys(whole)}


TOWER = "vision_model."
CLIP = image_part(
    activation=tuple(ACTIVATIONS),
    defaults=CLIP_DEFAULTS,
    keys=(EPS,),
    more_sizes=lambda vision, config: {
        "v_places": grid_side(vision) ** 2 + 1,
        "v_vector": Config(config.outer, config.home).whole("projection_dim", default=512),
    },
    more_keys=_clip_keys,
    image_keys=preprocessor_keys,
    tensors=(*tower(TOWER), matrix("mm.visual_projection", "visual_projection", "v_vector", "v_embd")),
)
SIGLIP = image_part(
    activation=("gelu_pytorch_tanh", *ACTIVATIONS),
    defaults=SIGLIP_DEFAULTS,
    keys=(EPS,),
    more_sizes=lambda vision, config: {
        "v_places": grid_side(vision) ** 2,
        "v_qkv": 3 * vision.whole("hidden_size"),
    },
    more_keys=lambda vision, config, sizes: activation_key(vision),
    image_keys=_siglip_processor_keys,
    tensors=(*tower(TOWER, class_token=False), *_head()),
)
TEXT_DEFAULTS = {
    "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 8,
    "vocab_size": 49408, "max_position_embeddings": 77, "layer_norm_eps": 1e-5, "hidden_act": "quick_gelu",
}  # fmt: skip
SIGLIP_TEXT_DEFAULTS = {
    "hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 12,
    "vocab_size": 32000, "max_position_embeddings": 64, "layer_norm_eps": 1e-6, "hidden_act": "gelu_pytorch_tanh",
}  # fmt: skip
ARCHITECTURES = (
    _image_encoder("clip-vision", "CLIPModel", CLIP),
    _image_encoder("siglip-vision", "SiglipModel", SIGLIP),
    _dual(
        "clip-dual", "CLIPModel", CLIP, TEXT_DEFAULTS,
        (matrix("text_projection", "text_projection", "v_vector", "n_embd"),),
        lambda config, sizes: {"attention.causal": True},
    ),
    _dual(
        "siglip-dual", "SiglipModel", SIGLIP, SIGLIP_TEXT_DEFAULTS,
        affine("text_projection", "text_model.head", "v_embd", "n_embd"), siglip_text_keys,
    ),
)  # fmt: skip
