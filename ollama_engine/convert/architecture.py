"""How an architecture's conversion is declared: `Architecture`, `Vision`, `Key`, `TensorMap`.

An architecture's file is data; `plan` does the work. Shapes name sizes ("n_embd"), whose numbers `sizes` takes from
config.json. Shapes are in numpy's order, as checkpoints have them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ollama_engine.convert.source.folder import Config, ModelFolder
from ollama_engine.convert.transforms import Transform
from ollama_engine.ml.gguf.metadata import Metadata

__all__ = [
    "COMMON_RENAMES",
    "Architecture",
    "Key",
    "TensorMap",
    "Vision",
    "decoder_sizes",
    "layered",
    "linear",
    "no_tensors",
]

Sizes = Mapping[str, int]
MetadataValues = Mapping[str, Any]

COMMON_RENAMES = (
    (r"^(?:model\.)?language_model\.(?:model\.)?(?=embed_tokens|layers|norm\.)", "model."),
    (r"^(?:model\.)?language_model\.(?=lm_head)", ""),
    (r"^(?=embed_tokens\.|layers\.|norm\.)", "model."),
    (r"^model\.(?=vision_tower\.|vision_model\.|visual\.|multi_modal_projector\.)", ""),
)
"""Prefixes that differ between releases of transformers, and between the classes that save the weights."""

COMMON_IGNORED = (r"\.rotary_emb\.inv_freq$", r"\.(?:attention|attn)\.(?:masked_)?bias$")
"""Constants that old versions saved beside the weights."""


@dataclass(frozen=True)
class Key:
    """One metadata key below the architecture's name, copied from config.json."""

    name: str
    kind: Literal["u32", "f32", "bool", "str"]
    sources: tuple[str, ...]
    """Names in config.json; the first that is there counts."""
    required: bool = True


@dataclass(frozen=True)
class TensorMap:
    """One kind of tensor: what it is called in GGUF and in the checkpoint, and its shape there.

    "{i}" stands for the layer. "{e}" in `source` stands for the expert: all of them are stacked. If several
    declarations with one target the first whose source exists counts.
    """

    target: str
    source: str
    shape: tuple[str | int, ...]
    """Shape of the source tensor: names of sizes, or numbers."""
    transform: Transform | None = None
    optional: bool = False
    applies: Callable[[Config, int], bool] | None = None
    """(config, layer) -> whether the model has it; always, if None."""
    layers: str = "n_layer"
    """The size that counts the layers which "{i}" stands for."""
    after: str | None = None
    """The size that is added to the layer's number in `target`, and where "{behind}" stands in `source`: for layers
    behind others."""
    factors: Callable[[Config, Sizes], NDArray[np.float32]] | None = None
    """What its numbers are multiplied by, before the transform."""
    left_out: bool = False
    """Whether checkpoints have it and the model does not read it."""
    if_it_fits: bool = False
    """Whether a tensor of another shape is left to the next declaration of this target."""


def _no_values(config: Config, sizes: Sizes) -> MetadataValues:
    return {}


def _no_image_keys(processor: Config) -> MetadataValues:
    return {}


def _nothing(names: Collection[str]) -> MetadataValues:
    return {}


def _nothing_told(folder: ModelFolder) -> MetadataValues:
    return {}


def no_tensors(config: Config, sizes: Sizes) -> Mapping[str, NDArray[np.float32]]:
    """None are made."""
    return {}


@dataclass(frozen=True, kw_only=True)
class Vision:
    """The part of a model that reads images: what it adds to the file of the text part."""

    sizes: Callable[[Config], Sizes]
    """Their names begin with v_: "v_embd"."""
    keys: Callable[[Config, Sizes], MetadataValues]
    """Below the architecture's name, most of them below `vision.`."""
    tensors: tuple[TensorMap, ...]
    """The encoder's are named `v.`, those of the projector into the text part `mm.`."""
    image_keys: Callable[[Config], MetadataValues] = _no_image_keys
    """Keys from the config of the published image processor, below the architecture's name."""
    sources: str = r"^(?:model\.)?(?:vision_tower|vision_model|visual|multi_modal_projector)\."
    """Regular expression of all its names in the checkpoint, to leave it out."""


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """How one `general.architecture` is made of what Hugging Face publishes."""

    name: str
    """`general.architecture`."""
    classes: tuple[str, ...]
    """Names that `architectures` of config.json may have."""
    fits: Callable[[Config], bool] | None = None
    """Whether it is for a model of these classes, where another one has the rest; for all, if None."""
    sizes: Callable[[Config], Sizes]
    """The sizes that shapes are made of; n_layer is required."""
    keys: tuple[Key, ...]
    tensors: tuple[TensorMap, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values that published config.json files omit because they are transformers' defaults."""
    told_by_names: Callable[[Collection[str]], MetadataValues] = _nothing
    """Values that config.json has no names for, by the names of the checkpoint's tensors."""
    told_by_folder: Callable[[ModelFolder], MetadataValues] = _nothing_told
    """Values that config.json has no names for, by other files of the folder."""
    told_by_target: Callable[[Metadata], MetadataValues] | None = None
    """Values that config.json may leave out, by the file of the model that this one drafts for, which also has its
    tokenizer. None for models that need no other.
    """
    more_keys: Callable[[Config, Sizes], MetadataValues] = _no_values
    """Computed keys, below the architecture's name: int, float, bool, str, or a list of these."""
    llama3_rope: bool = False
    """Whether its models read the rotary factors of Llama 3.1."""
    made_tensors: Callable[[Config, Sizes], Mapping[str, NDArray[np.float32]]] = no_tensors
    """Tensors that are computed from config.json."""
    renames: tuple[tuple[str, str], ...] = COMMON_RENAMES
    """(regular expression, replacement) for names of the checkpoint, before they are looked up."""
    spare: str | None = None
    """Regular expression of the checkpoint's names of a part that is left out where it is not as declared."""
    ignored: tuple[str, ...] = ()
    """Regular expressions of names that carry no weights, besides COMMON_IGNORED."""
    unsupported: Mapping[str, str] = field(default_factory=dict)
    """Regular expressions of names of whole parts that are left out, and what such a part reads: "sound"."""
    always_f32: tuple[str, ...] = field(default=())
    """Regular expressions of GGUF names that are never stored in fewer bits, besides those of `outtype`."""
    numbers: Mapping[str, str] = field(default_factory=dict)
    """Keys whose value is a list, a number for each layer -> the tensors of one number which they are in."""
    pre_names: tuple[str, ...] = ()
    """Names of pre-tokenizers to prefer where several behave alike."""
    vision: Vision | None = None
    chat_templates: Mapping[str, str] = field(default_factory=dict)
    """Templates by name, for folders that have none of these names."""
    reads_text: bool = True
    """Whether it has a tokenizer."""
    image_keys: Callable[[Config], MetadataValues] = _no_image_keys
    """See `Vision.image_keys`; for a model whose part that reads images is converted."""

    def part(self, *, vision: bool) -> Architecture:
        """The text part alone, or both parts in one whose `vision` is None."""
        images = self.vision
        if images is None:
            return self
        if not vision:
            return replace(self, vision=None, ignored=(*self.ignored, images.sources))
        return replace(
            self,
            vision=None,
            sizes=lambda config: {**self.sizes(config), **images.sizes(config)},
            more_keys=lambda config, sizes: {**self.more_keys(config, sizes), **images.keys(config, sizes)},
            tensors=(*self.tensors, *images.tensors),
            image_keys=images.image_keys,
        )


def linear(target: str, source: str, out: str, into: str, transform: Transform | None = None) -> tuple[TensorMap, ...]:
    """A projection's weight [out, into], and its bias [out] where the checkpoint has one."""
    return (
        TensorMap(f"{target}.weight", f"{source}.weight", (out, into), transform),
        TensorMap(f"{target}.bias", f"{source}.bias", (out,), transform, optional=True),
    )


def layered(layers: str, *tensors: TensorMap) -> tuple[TensorMap, ...]:
    """Declarations whose "{i}" runs over as many layers as the size `layers` counts."""
    return tuple(replace(tensor, layers=layers) for tensor in tensors)


def decoder_sizes(config: Config) -> dict[str, int]:
    """The sizes of a decoder with grouped-query attention.

    n_expert is 0 for a dense model. Raises ModelFormatError when config.json lacks one or they cannot be.
    """
    n_embd, n_head = config.whole("hidden_size"), config.whole("num_attention_heads")
    if n_head < 1:
        raise config.wrong(("num_attention_heads",), "at least 1", n_head)
    n_head_kv = config.whole("num_key_value_heads", default=n_head)
    head_dim = config.whole("head_dim", default=n_embd // n_head)
    return {
        "n_layer": config.whole("num_hidden_layers"),
        "n_embd": n_embd,
        "n_head": n_head,
        "n_head_kv": n_head_kv,
        "head_dim": head_dim,
        "n_ff": config.whole("intermediate_size"),
        "n_vocab": config.whole("vocab_size"),
        "n_expert": config.whole("num_local_experts", "num_experts", default=0),
        "q_size": n_head * head_dim,
        "kv_size": n_head_kv * head_dim,
    }
