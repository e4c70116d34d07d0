"""Cuts a model that reads images into two files, as llama.cpp and Ollama had them: a text model and a projector.

What is called how there is written down here once more, and not taken from the package.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter
from numpy.typing import NDArray

from tests.support.gguf_files import write_and_close

VISION = ("v.", "mm.")


@dataclass(frozen=True)
class Cut:
    """How the projector of a model is written. `names`: pairs of (regular expression of our name, name there)."""

    projector_type: str
    keys: Mapping[str, str]
    """{our key below the architecture: key below the part's}."""
    names: tuple[tuple[str, str], ...]
    architecture: str | None = None
    """Of the text file; None for that of the whole model."""
    text_keys: Mapping[str, str | None] = field(default_factory=dict)
    """{our key below the architecture: key below that of the text file}; None for one that is not written."""
    paired_heads: int = 0
    """Heads of the tower whose rows of queries and keys are written as pairs; 0 for rows as they are."""
    part: str = "clip"
    """Architecture of the projector's file, which its keys begin with; only llama.cpp's say of which type it is."""


def vision_keys(*names: str) -> dict[str, str]:
    """Keys that both files have below `vision.`."""
    return {f"vision.{name}": f"vision.{name}" for name in names}


GEMMA3 = Cut(
    "gemma3",
    vision_keys(
        "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.layer_norm_epsilon", "image_size", "patch_size", "image_mean", "image_std",
        "projector.scale_factor",
    ),
    (
        (r"v\.patch_embedding\.(.*)", r"v.patch_embd.\1"),
        (r"v\.position_embedding\.weight", r"v.position_embd.weight"),
        (r"v\.blk\.(\d+)\.layer_norm(\d)\.(.*)", r"v.blk.\1.ln\2.\3"),
        (r"v\.blk\.(\d+)\.attn_output\.(.*)", r"v.blk.\1.attn_out.\2"),
        (r"v\.blk\.(\d+)\.mlp\.fc1\.(.*)", r"v.blk.\1.ffn_up.\2"),
        (r"v\.blk\.(\d+)\.mlp\.fc2\.(.*)", r"v.blk.\1.ffn_down.\2"),
        (r"v\.post_layernorm\.(.*)", r"v.post_ln.\1"),
        (r"mm\.mm_soft_emb_norm\.weight", r"mm.soft_emb_norm.weight"),
        (r"mm\.mm_input_projection\.weight", r"mm.input_projection.weight"),
    ),
)  # fmt: skip

LLAMA4 = Cut(
    "llama4",
    {
        **vision_keys(
            "block_count", "embedding_length", "feed_forward_length", "attention.head_count", "image_size",
            "patch_size", "image_mean", "image_std", "projector.scale_factor",
        ),
        "vision.layer_norm_epsilon": "vision.attention.layer_norm_epsilon",
    },
    (
        (r"v\.patch_embedding\.weight", r"v.patch_embd.weight"),
        (r"v\.class_embedding", r"v.class_embd"),
        (r"v\.positional_embedding_vlm", r"v.position_embd.weight"),
        (r"v\.layernorm_(pre|post)\.(.*)", r"v.\1_ln.\2"),
        (r"v\.blk\.(\d+)\.attn_norm\.(.*)", r"v.blk.\1.ln1.\2"),
        (r"v\.blk\.(\d+)\.ffn_norm\.(.*)", r"v.blk.\1.ln2.\2"),
        (r"v\.blk\.(\d+)\.attn_output\.(.*)", r"v.blk.\1.attn_out.\2"),
        (r"v\.blk\.(\d+)\.mlp\.fc1\.(.*)", r"v.blk.\1.ffn_up.\2"),
        (r"v\.blk\.(\d+)\.mlp\.fc2\.(.*)", r"v.blk.\1.ffn_down.\2"),
        (r"v\.vision_adapter\.mlp\.fc(\d)\.weight", r"mm.model.mlp.\1.weight"),
        (r"mm\.linear_1\.weight", r"mm.model.fc.weight"),
    ),
    text_keys=dict.fromkeys(("image_token_id", "image_start_token_id", "image_end_token_id")),
)  # fmt: skip

QWEN25VL = Cut(
    "qwen2.5vl_merger",
    {
        **vision_keys(
            "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
            "attention.layer_norm_epsilon", "patch_size", "image_mean", "image_std", "spatial_merge_size",
            "window_size",
        ),
        "vision.fullatt_block_indexes": "vision.wa_layer_indexes",
        "vision.min_pixels": "vision.image_min_pixels",
        "vision.max_pixels": "vision.image_max_pixels",
    },
    (
        (r"v\.patch_embd_0\.weight", r"v.patch_embd.weight"),
        (r"v\.patch_embd_1\.weight", r"v.patch_embd.weight.1"),
        (r"v\.merger\.ln_q\.(.*)", r"v.post_ln.\1"),
        (r"v\.merger\.mlp\.(\d)\.(.*)", r"mm.\1.\2"),
    ),
    architecture="qwen2vl",
    text_keys={
        "rope.mrope_section": "rope.dimension_sections",
        **dict.fromkeys(("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")),
    },
)  # fmt: skip

MISTRAL3 = Cut(
    "pixtral",
    {
        **vision_keys(
            "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
            "attention.layer_norm_epsilon", "image_size", "patch_size", "image_mean", "image_std",
        ),
        "spatial_merge_size": "vision.spatial_merge_size",
    },
    (
        (r"v\.patch_conv\.weight", r"v.patch_embd.weight"),
        (r"v\.encoder_norm\.weight", r"v.pre_ln.weight"),
        (r"v\.blk\.(\d+)\.attn_norm\.weight", r"v.blk.\1.ln1.weight"),
        (r"v\.blk\.(\d+)\.ffn_norm\.weight", r"v.blk.\1.ln2.weight"),
        (r"v\.blk\.(\d+)\.attn_output\.weight", r"v.blk.\1.attn_out.weight"),
        (r"mm\.norm\.weight", r"mm.input_norm.weight"),
        (r"mm\.patch_merger\.merging_layer\.weight", r"mm.patch_merger.weight"),
        (r"mm\.linear_(\d)\.(.*)", r"mm.\1.\2"),
    ),
    architecture="llama",
    text_keys=dict.fromkeys(("image_token_index", "mm.projector_bias", "mm.projector_hidden_act")),
    paired_heads=3,
)  # fmt: skip


def cut(path: Path, folder: Path, how: Cut, *, swapped: bool = False, kind: str | None = None) -> tuple[Path, Path]:
    """(text model, projector) of a model's file. `swapped`: ffn_up and ffn_down have each other's name.

    `kind`: another projector type to write.
    """
    reader = GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    whole: str = fields["general.architecture"].contents()
    text_path, part_path = folder / f"{path.stem}-text.gguf", folder / f"mmproj-{path.stem}.gguf"
    text = GGUFWriter(text_path, how.architecture or whole)
    part = GGUFWriter(part_path, how.part)
    if how.part == "clip":
        part.add_string("clip.projector_type", kind or how.projector_type)
        part.add_bool("clip.has_vision_encoder", True)
    for name, stored in fields.items():
        own = name.removeprefix(f"{whole}.")
        if own in how.keys:
            _add(part, f"{how.part}.{how.keys[own]}", stored)
        elif name != "general.architecture" and not own.startswith("vision."):
            known = how.text_keys.get(own, own)
            if known is not None:
                _add(text, f"{how.architecture or whole}.{known}" if own != name else name, stored)
    for tensor in reader.tensors:
        name = tensor.name
        if name.startswith(VISION):
            name = next((re.sub(p, new, name) for p, new in how.names if re.fullmatch(p, name)), name)
            if swapped:
                name = re.sub(r"ffn_(up|down)", lambda found: "ffn_down" if found[1] == "up" else "ffn_up", name)
        writer = part if tensor.name.startswith(VISION) else text
        values = np.array(tensor.data)
        if how.paired_heads and re.fullmatch(r"v\.blk\.\d+\.attn_[qk]\.weight", name):
            halves = values.reshape(how.paired_heads, 2, -1, values.shape[1])
            values = np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))
        writer.add_tensor(name, values, raw_dtype=tensor.tensor_type)
    for writer in (text, part):
        write_and_close(writer)
    return text_path, part_path


def without_keys(path: Path, target: Path, names: Collection[str]) -> Path:
    """The same file without some of its keys."""
    return changed(path, target, dict.fromkeys(names))


def changed(
    path: Path, target: Path, keys: Mapping[str, Any], tensors: Mapping[str, NDArray[Any] | None] | None = None
) -> Path:
    """The same file with other values of some keys and tensors, or more of them; None leaves one out."""
    reader = GGUFReader(path)
    writer = GGUFWriter(target, reader.fields["general.architecture"].contents())
    for name, stored in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture" and name not in keys:
            _add(writer, name, stored)
    for name, value in keys.items():
        if value is not None:
            kind = GGUFValueType.UINT32 if type(value) is int else GGUFValueType.get_type(value)
            writer.add_key_value(name, value, kind, GGUFValueType.get_type(value[0]) if type(value) is list else None)
    for tensor in reader.tensors:
        new = (tensors or {}).get(tensor.name, tensor)
        if new is tensor:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        elif new is not None:
            writer.add_tensor(tensor.name, new)
    there = {tensor.name for tensor in reader.tensors}
    for name, new in (tensors or {}).items():
        if new is not None and name not in there:
            writer.add_tensor(name, new)
    write_and_close(writer)
    return target


def _add(writer: GGUFWriter, key: str, field: Any) -> None:
    kind = field.types[0]
    if kind == GGUFValueType.ARRAY:
        writer.add_key_value(key, field.contents(), kind, sub_type=field.types[-1])
    else:
        writer.add_key_value(key, field.contents(), kind)
