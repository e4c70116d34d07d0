"""Declarations that the image parts of all architectures share, and the dialect of the files they go into.

The dialect is that of Ollama's own engine: one file holds the text part and the image part, tensors of the latter below
`v.` (encoder) and `mm.` (projector), keys below `<architecture>.vision.`. llama.cpp keeps the two in two files and has
no file at all for Llama 3.2 Vision; this project continues the former engine, whose files users have. The text part
keeps the names that both know. Where Ollama's engine knew a number by heart, such as the id of an image token, a key of
our own says it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ollama_engine.convert.architecture import Key, MetadataValues, Sizes, TensorMap, Vision
from ollama_engine.convert.keys import read_keys
from ollama_engine.convert.source.folder import Config, ModelFolder
from ollama_engine.convert.transforms import Transform
from ollama_engine.errors import UnsupportedModelError

__all__ = [
    "IMAGE_TOKEN",
    "affine",
    "attention",
    "colours",
    "expect",
    "expect_each",
    "expect_normalized",
    "grid_side",
    "image_part",
    "matrix",
    "numbers",
    "read_processor",
    "rope_base",
    "side",
    "whole_numbers",
]

NAMES: Mapping[str, tuple[str, ...]] = {
    "v_layer": ("num_hidden_layers", "depth"),
    "v_embd": ("hidden_size", "mm_embed_dim"),
    "v_head": ("num_attention_heads", "attention_heads", "num_heads"),
    "v_ff": ("intermediate_size",),
    "v_channels": ("num_channels", "in_chans", "in_channels"),
}
"""Sizes that every encoder of images has, under any of their names in vision_config."""

KEYS = (
    Key("vision.block_count", "u32", NAMES["v_layer"]),
    Key("vision.embedding_length", "u32", NAMES["v_embd"]),
    Key("vision.feed_forward_length", "u32", NAMES["v_ff"]),
    Key("vision.attention.head_count", "u32", NAMES["v_head"]),
    Key("vision.num_channels", "u32", NAMES["v_channels"]),
)

IMAGE_TOKEN = Key("image_token_id", "u32", ("image_token_id", "image_token_index"), required=False)

OWN_FILE, SHARED_FILE = "preprocessor_config.json", "processor_config.json"

MoreSizes: TypeAlias = Callable[[Config, Config], Sizes]
MoreKeys: TypeAlias = Callable[[Config, Config, Sizes], MetadataValues]


def image_part(
    *,
    activation: str | tuple[str, ...],
    defaults: Mapping[str, Any],
    tensors: tuple[TensorMap, ...],
    keys: tuple[Key, ...] = (),
    outer_keys: tuple[Key, ...] = (),
    more_sizes: MoreSizes = lambda vision, config: {},
    more_keys: MoreKeys = lambda vision, config, sizes: {},
    image_keys: Callable[[Config], MetadataValues] = lambda processor: {},
) -> Vision:
    """The image part of an architecture: what its file declares, and what all encoders have.

    Args:
        activation: the `hidden_act` that engines compute, or several, of which the first is the default.
        defaults: values that a published vision_config omits because they are transformers' defaults.
        tensors: all of them, below `v.` and `mm.`.
        keys: besides KEYS, taken from vision_config as they are.
        outer_keys: taken from config.json as they are.
        more_sizes: (vision_config, config.json) -> sizes besides those of NAMES and v_patch.
        more_keys: (vision_config, config.json, all sizes) -> keys that are no plain copies.
        image_keys: the image processor's config -> keys, besides mean and deviation of the colours.
    """
    known = (activation,) if isinstance(activation, str) else activation

    def all_sizes(config: Config) -> Sizes:
        vision = config.part("vision_config", defaults)
        common = {name: vision.whole(*sources) for name, sources in NAMES.items()}
        return {**common, "v_patch": side(vision, "patch_size"), **more_sizes(vision, config)}

    def all_keys(config: Config, sizes: Sizes) -> MetadataValues:
        vision = config.part("vision_config", defaults)
        expect(vision, "hidden_act", *known, default=known[0])
        whole_image = {} if vision.get("image_size") is None else {"vision.image_size": side(vision, "image_size")}
        return {
            **read_keys(outer_keys, config),
            **read_keys((*KEYS, *keys), vision),
            **whole_image,
            "vision.patch_size": sizes["v_patch"],
            **more_keys(vision, config, sizes),
        }

    return Vision(
        sizes=all_sizes, keys=all_keys, tensors=tensors, image_keys=lambda made: {**colours(made), **image_keys(made)}
    )


def colours(processor: Config) -> MetadataValues:
    """Mean and deviation of the colours, where the image processor's config has them. Raises ModelFormatError."""
    if processor.get("do_normalize") is False:
        return {"vision.image_mean": [0.0] * 3, "vision.image_std": [1.0] * 3}
    keys: dict[str, list[float]] = {}
    for name in ("image_mean", "image_std"):
        value = processor.get(name)
        if value is None:
            continue
        if not isinstance(value, list) or len(value) != 3 or not all(type(n) in (int, float) for n in value):
            raise processor.wrong((name,), "three numbers", value)
        keys[f"vision.{name}"] = [float(n) for n in value]
    return keys


def read_processor(folder: ModelFolder) -> Config:
    """The config of the published image processor, in either of the files that releases of transformers write.

    Empty for a folder that has neither. Raises ModelFormatError for one that is broken.
    """
    values = folder.json(OWN_FILE)
    if values is not None:
        return Config(values, str(folder.path / OWN_FILE))
    whole = Config(folder.json(SHARED_FILE) or {}, str(folder.path / SHARED_FILE))
    return Config(whole.mapping("image_processor"), f"{whole.home}: image_processor")


def expect_normalized(processor: Config, resample: int | None = None) -> None:
    """Refuse an image processor whose pictures are not resized, or whose pixels are not normalized from 0 to 255.

    `resample`: Pillow's number of the only filter that the family resizes by. Raises UnsupportedModelError.
    """
    expect_each(processor, do_resize=True, do_rescale=True, do_normalize=True)
    if resample is not None:
        expect_each(processor, resample=resample)
    expect(processor, "rescale_factor", 1 / 255, 0.00392156862745098, default=1 / 255)


def matrix(target: str, source: str, *shape: str | int, transform: Transform | None = None) -> TensorMap:
    """A weight without bias, of any number of dimensions."""
    return TensorMap(f"{target}.weight", f"{source}.weight", shape, transform)


def affine(
    target: str, source: str, *shape: str | int, transform: Transform | None = None
) -> tuple[TensorMap, TensorMap]:
    """A weight and its bias, which is as long as the weight's first dimension: a projection, or a layer norm."""
    return (
        matrix(target, source, *shape, transform=transform),
        TensorMap(f"{target}.bias", f"{source}.bias", shape[:1], transform),
    )


def attention(block: str, source: str, output: str = "o_proj", *, bias: bool = True) -> tuple[TensorMap, ...]:
    """The four projections of an encoder's attention."""
    names = {"q": "q_proj", "k": "k_proj", "v": "v_proj", "output": output}
    declare = affine if bias else lambda *names: (matrix(*names),)
    return tuple(
        tensor
        for target, name in names.items()
        for tensor in declare(f"{block}attn_{target}", f"{source}.{name}", "v_embd", "v_embd")
    )


def side(config: Config, name: str) -> int:
    """The length of a square's side, given as one number or as two that are the same."""
    value = config.get(name)
    if isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]:
        value = value[0]
    if type(value) is not int or value < 1:
        raise config.wrong((name,), "the side of a square", value)
    return value


def grid_side(config: Config) -> int:
    """Patches along the side of an image."""
    image, patch = side(config, "image_size"), side(config, "patch_size")
    if patch > image:
        raise config.wrong(("patch_size",), f"no more than image_size {image}", patch)
    return image // patch


def numbers(config: Config, name: str, below: int) -> list[int]:
    """A list of numbers of layers. Raises ModelFormatError when it is none, or names layers there are not."""
    value = config.get(name)
    if not isinstance(value, (list, tuple)) or not all(type(n) is int and 0 <= n < below for n in value):
        raise config.wrong((name,), f"numbers of layers below {below}", value)
    return list(value)


def rope_base(config: Config) -> float:
    """The base by which an encoder rotates, wherever its version of transformers puts it; 10000 where it is not said.

    Raises UnsupportedModelError for a rotation that is stretched.
    """
    rope = {**config.mapping("rope_scaling"), **config.mapping("rope_parameters")}
    expect(Config(rope, f"{config.home}: rope_parameters"), "rope_type", "default", "axial", default="default")
    base = rope.get("rope_theta", config.number("rope_theta", default=10000.0))
    if type(base) not in (int, float):
        raise config.wrong(("rope_theta",), "a number", base)
    return float(base)


def expect(config: Config, name: str, *allowed: Any, default: Any) -> None:
    """Refuse a setting that the architecture's engines take for granted, and no key could tell them of.

    Raises UnsupportedModelError.
    """
    value = config.get(name, default=default)
    if value not in allowed:
        raise UnsupportedModelError(
            f"{config.home}: {name} is {value!r}, which GGUF has no key for; supported: {_listed(allowed)}"
        )


def expect_each(config: Config, **values: Any) -> None:
    """Refuse other values of these settings, as `expect` does; each is the default, too."""
    for name, value in values.items():
        expect(config, name, value, default=value)


def whole_numbers(processor: Config, sources: Mapping[str, str]) -> MetadataValues:
    """{key: the number under this name}, of those that are there."""
    return {key: processor.whole(name) for key, name in sources.items() if processor.get(name) is not None}


def _listed(values: Sequence[Any]) -> str:
    return ", ".join(repr(value) for value in values)
