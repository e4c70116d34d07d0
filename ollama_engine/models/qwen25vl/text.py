"""The text part of Qwen2-VL and Qwen2.5-VL: a Qwen2 whose positions have several axes.

Each pair of a head turns by time, height or width (M-RoPE, Wang et al. 2024). A token of text has the same number on
all axes, so without images this is the rotation of Qwen2, and keys move to other positions as there.
"""

from __future__ import annotations

from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.options import Options, read_common
from ollama_engine.models.qwen2 import Qwen2
from ollama_engine.models.sections import read_sections, with_sections

SECTIONS = "rope.mrope_section"


class Qwen25VLText(Qwen2):
    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        o = read_common(metadata, n_vocab)
        if SECTIONS not in metadata and "vision.block_count" not in metadata:
            return o  # a file without a vision part: its positions have one axis
        return with_sections(o, read_sections(metadata, SECTIONS, o.rope.n_dims // 2))
