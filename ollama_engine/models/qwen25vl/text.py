"""The text part of Qwen2-VL and Qwen2.5-VL: a Qwen2 whose positions have several axes.

Each pair of a head turns by time, height or width (M-RoPE, Wang et al. 2024). A token of text has the same number on
all axes, so without images this is the rotation of Qwen2, and keys move to other positions as there.
"""

from __future__ import annotations

from dataclasses import fields, replace

from ollama_engine import nn
from ollama_engine.errors import ModelFormatError
from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.options import Options, read_common
from ollama_engine.models.qwen2 import Qwen2

SECTIONS = "rope.mrope_section"


class Qwen25VLText(Qwen2):
    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab)
        if SECTIONS not in metadata and "vision.block_count" not in metadata:
            return o  # a file without a vision part: its positions have one axis
        rope = nn.SectionedRope(**{f.name: getattr(o.rope, f.name) for f in fields(o.rope)},
                                sections=read_sections(metadata, o.rope.n_dims // 2))  # fmt: skip
        return replace(o, rope=rope, ropes=(rope,) * o.n_layer)


def read_sections(metadata: Metadata, pairs: int) -> tuple[int, ...]:
    """How many pairs turn by each axis. llama.cpp's converter writes a fourth axis, which no pair turns by."""
    sections = metadata.list(SECTIONS)
    if not 3 <= len(sections) <= 4 or not all(type(n) is int and n >= 0 for n in sections) or sum(sections) != pairs:
        raise ModelFormatError(
            f"{metadata.key(SECTIONS)} is {sections}; expected 3 or 4 numbers of pairs that add up to {pairs}, half "
            "the size of a head"
        )
    return tuple(sections)
