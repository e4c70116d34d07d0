"""Cuts a model that reads images into two files, as llama.cpp's converter writes them: a text model and a projector.

What is called how there is written down here once more, and not taken from the package.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, GGUFValueType, GGUFWriter

VISION = ("v.", "mm.")


@dataclass(frozen=True)
class Cut:
    """How the projector of a model is written. `names`: pairs of (regular expression of our name, name there)."""

    projector_type: str
    keys: Mapping[str, str]
    """{our key below the architecture: key below `clip.`}."""
    names: tuple[tuple[str, str], ...]
    architecture: str | None = None
    """Of the text file; None for that of the whole model."""


GEMMA3 = Cut(
    "gemma3",
    {
        f"vision.{key}": f"vision.{key}"
        for key in (
            "block_count", "embedding_length", "feed_forward_length", "attention.head_count",
            "attention.layer_norm_epsilon", "image_size", "patch_size", "image_mean", "image_std",
            "projector.scale_factor",
        )
    },
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


def cut(path: Path, folder: Path, how: Cut, *, swapped: bool = False, kind: str | None = None) -> tuple[Path, Path]:
    """(text model, projector) of a model's file. `swapped`: ffn_up and ffn_down have each other's name.

    `kind`: another projector type to write.
    """
    reader = GGUFReader(path)
    fields = {name: field for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    whole: str = fields["general.architecture"].contents()
    text_path, part_path = folder / f"{path.stem}-text.gguf", folder / f"mmproj-{path.stem}.gguf"
    text = GGUFWriter(text_path, how.architecture or whole)
    part = GGUFWriter(part_path, "clip")
    part.add_string("clip.projector_type", kind or how.projector_type)
    part.add_bool("clip.has_vision_encoder", True)
    for name, field in fields.items():
        own = name.removeprefix(f"{whole}.")
        if own in how.keys:
            _add(part, f"clip.{how.keys[own]}", field)
        elif name != "general.architecture" and not own.startswith("vision."):
            _add(text, f"{how.architecture}.{own}" if how.architecture and own != name else name, field)
    for tensor in reader.tensors:
        name = tensor.name
        if name.startswith(VISION):
            name = next((re.sub(p, new, name) for p, new in how.names if re.fullmatch(p, name)), name)
            if swapped:
                name = re.sub(r"ffn_(up|down)", lambda found: "ffn_down" if found[1] == "up" else "ffn_up", name)
        writer = part if tensor.name.startswith(VISION) else text
        writer.add_tensor(name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
    for writer in (text, part):
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return text_path, part_path


def _add(writer: GGUFWriter, key: str, field: Any) -> None:
    kind = field.types[0]
    if kind == GGUFValueType.ARRAY:
        writer.add_key_value(key, field.contents(), kind, sub_type=field.types[-1])
    else:
        writer.add_key_value(key, field.contents(), kind)
