"""Vision parts in files of their own, such as llama.cpp's "mmproj" files: which model one makes with a text model.

Their metadata begin with `clip.`, those of Ollama's first Llama 3.2 Vision with `mllama.`. The `PROJECTOR` of a
model's module `projector` says how these and the tensors are called here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module

from ollama_engine.errors import ConfigError, ModelFormatError, Option
from ollama_engine.ml.gguf.metadata import Metadata, MetadataValue
from ollama_engine.models.media_tokens import TOKENS as VOCABULARY

__all__ = ["CLIP_TOWER", "TOWER_BLOCK", "Projector", "find_projector", "tower_keys"]

PAIRS: tuple[tuple[str, str], ...] = (
    ("deepseek2-ocr", "deepseek_ocr"),
    ("gemma3", "gemma3"),
    ("gemma4", "gemma4"),
    ("glm4", "glm_ocr"),
    ("lfm2", "lfm2_vl"),
    ("lfm2moe", "lfm2_vl"),
    ("llama", "idefics3"),
    ("llama", "llava"),
    ("llama", "mistral3"),
    ("llama4", "llama4"),
    ("mllama", "mllama"),
    ("mistral3", "mistral3"),
    ("qwen2", "internvl"),
    ("qwen25vl", "qwen25vl"),
    ("qwen3", "internvl"),
    ("qwen35", "qwen3vl"),
    ("qwen35moe", "qwen3vl"),
    ("qwen3vl", "qwen3vl"),
    ("qwen3vlmoe", "qwen3vl"),
)
"""(architecture of the text model as it is known here, folder of the model whose vision part it has)."""

TOWER_KEYS = (
    "vision.block_count",
    "vision.embedding_length",
    "vision.feed_forward_length",
    "vision.attention.head_count",
    "vision.attention.layer_norm_epsilon",
    "vision.patch_size",
    "vision.image_mean",
    "vision.image_std",
)
"""Keys that every vision part has, and that are called the same here."""

TOWER_BLOCK = (
    (r"v\.blk\.(\d+)\.attn_out\.(weight|bias)", r"v.blk.\1.attn_output.\2"),
    (r"v\.blk\.(\d+)\.ffn_up\.(weight|bias)", r"v.blk.\1.mlp.fc1.\2"),
    (r"v\.blk\.(\d+)\.ffn_down\.(weight|bias)", r"v.blk.\1.mlp.fc2.\2"),
)
"""`Projector.names` of a tower's blocks but for their norms, for towers of `nn.vision.TowerBlock`."""

CLIP_TOWER = (
    (r"v\.class_embd(?:\.weight)?", r"v.class_embedding.weight"),
    (r"v\.patch_embd\.(weight|bias)", r"v.patch_embedding.\1"),
    (r"v\.position_embd\.weight", r"v.position_embedding.weight"),
    (r"v\.(pre|post)_ln\.(weight|bias)", r"v.\1_layernorm.\2"),
    (r"v\.blk\.(\d+)\.ln([12])\.(weight|bias)", r"v.blk.\1.layer_norm\2.\3"),
    *TOWER_BLOCK,
)
"""`Projector.names` of `nn.clip.ClipTower`."""

OPTION = Option("projector")

CLIP = "clip"
"""`general.architecture` of llama.cpp's files."""
MLLAMA = "mllama"
"""That of Ollama's first files of Llama 3.2 Vision, whose text parts have it as well."""

_FEED_FORWARD = {"ffn_up": "ffn_down", "ffn_down": "ffn_up"}

Shapes = Mapping[str, tuple[int, ...]]
"""{name: shape in ggml's order}."""


@dataclass(frozen=True, slots=True)
class Projector:
    """How a vision part is read."""

    architecture: str
    """That of the whole model; "{}" stands for that of the text model."""
    types: tuple[str, ...]
    """Values of `clip.projector_type`."""
    keys: Mapping[str, str]
    """{key below the prefix: key below the architecture}."""
    names: tuple[tuple[str, str], ...]
    """(regular expression of a tensor's whole name, what replaces it)."""
    prefix: str = CLIP
    """What its keys begin with."""

    def metadata(self, text: Metadata, values: Mapping[str, MetadataValue]) -> Metadata:
        """Metadata of the whole model: those of the text model, and those of the vision part under known names.

        `values`: those of both files, as they are there.
        """
        prefix, architecture = f"{text.architecture}.", self.architecture.format(text.architecture)
        whole: dict[str, MetadataValue] = {}
        for key, value in text.values.items():
            whole[f"{architecture}.{key.removeprefix(prefix)}" if key.startswith(prefix) else key] = value
        for key, known in self.keys.items():
            if f"{self.prefix}.{key}" in values:
                whole[f"{architecture}.{known}"] = values[f"{self.prefix}.{key}"]
        if VOCABULARY in values:
            whole[VOCABULARY] = values[VOCABULARY]
        return Metadata({**whole, "general.architecture": architecture})

    def owns(self, key: str) -> bool:
        """Whether a key of its file is one of the whole model's."""
        return key.startswith(f"{CLIP}.") or key.removeprefix(f"{self.prefix}.") in self.keys

    def known_names(self, shapes: Shapes) -> dict[str, str]:
        """{name in the file: name that the model reads}. Raises ModelFormatError where two would have one name."""
        swapped = _feed_forward_is_swapped(shapes)
        known: dict[str, str] = {}
        for name in shapes:
            plain = _other_feed_forward(name) if swapped else name
            known[name] = next((re.sub(p, new, plain) for p, new in self.names if re.fullmatch(p, plain)), plain)
        if len({*known.values()}) < len(known):
            twice = sorted(name for name in known.values() if [*known.values()].count(name) > 1)
            raise ModelFormatError(f"two tensors of the projector are called {twice[0]} here")
        return known


def tower_keys(*same: str) -> dict[str, str]:
    """`Projector.keys`: those of every vision part, and others that are called the `same` here."""
    return {name: name for name in (*TOWER_KEYS, *same)}


def find_projector(architecture: str, clip: Mapping[str, MetadataValue]) -> Projector:
    """How the projector with these metadata is read beside a text model of this (known) architecture.

    Raises ConfigError for a file that is no projector, and where the two do not belong together.
    """
    kind = _projector_type(clip)
    known: list[str] = []
    for text, whole in PAIRS:
        if text != architecture:
            continue
        projector: Projector = import_module(f"ollama_engine.models.{whole}.projector").PROJECTOR
        if kind in projector.types:
            return projector
        known += projector.types
    takes = f"takes {', '.join(known)}" if known else "takes none"
    raise ConfigError(OPTION, f" is of the type {kind!r}, and a text model of architecture {architecture} {takes}",
                      advice=["choose the one that was published with the model"])  # fmt: skip


def _projector_type(clip: Mapping[str, MetadataValue]) -> str:
    if clip.get("general.architecture") == MLLAMA and f"{MLLAMA}.vision.block_count" in clip:
        return MLLAMA
    if clip.get("general.architecture") != CLIP:
        raise ConfigError(
            OPTION, f" is a file of architecture {clip.get('general.architecture')!r}, and not the vision part of a "
            "model (an \"mmproj\" file, of architecture 'clip')",
        )  # fmt: skip
    for key in ("clip.vision.projector_type", "clip.projector_type", "clip.audio.projector_type"):
        if isinstance(found := clip.get(key), str):
            return found
    # Files of the first LLaVA do not say.
    return "mlp"


def _feed_forward_is_swapped(shapes: Shapes) -> bool:
    """Whether ffn_up and ffn_down have each other's name, as in the first clip files: ffn_down begins with rows of the
    tower's width then, the width of a norm.
    """
    width, down = shapes.get("v.blk.0.ln1.weight"), shapes.get("v.blk.0.ffn_down.weight")
    up = shapes.get("v.blk.0.ffn_up.weight")
    if width is None or down is None or up is None or down[0] == up[0]:
        return False
    return down[0] == width[0]


def _other_feed_forward(name: str) -> str:
    return re.sub(r"\bffn_(?:up|down)\b", lambda found: _FEED_FORWARD[found[0]], name)
