"""The text parts of Qwen3-VL: a Qwen3 whose positions have several axes, of which neighbouring pairs take turns.

Each pair of a head turns by time, height or width (interleaved M-RoPE). A token of text has the same number on all
axes, so without images this is the rotation of Qwen3. The first layers gain features of an image (deepstack,
`models.media_rows`). Source: Bai et al. 2025 (arXiv:2511.21631).
"""

from __future__ import annotations

from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.options import Options, OptionsT
from ollama_engine.models.qwen3 import Qwen3, Qwen3Options
from ollama_engine.models.qwen_moe import Qwen3Moe
from ollama_engine.models.sections import read_turns, with_sections

__all__ = ["Qwen3VLMoeText", "Qwen3VLText", "with_axes"]

SECTIONS = "rope.dimension_sections"
DEFAULT = (24, 20, 20)
"""How many pairs turn by each axis in Qwen3-VL, where Ollama's files do not say."""


def with_axes(o: OptionsT, metadata: Metadata) -> OptionsT:
    """The options with the rotation of a file that reads images; in others all axes have the same positions."""
    if "vision.block_count" not in metadata:
        return o
    return with_sections(o, read_turns(metadata, SECTIONS, o.rope.n_dims // 2, DEFAULT), interleaved=True)


class Qwen3VLText(Qwen3):
    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Qwen3Options:
        return with_axes(Qwen3.read_options(metadata, n_vocab), metadata)


class Qwen3VLMoeText(Qwen3Moe):
    @staticmethod
    def read_options(metadata: Metadata, n_vocab: int) -> Options:
        return with_axes(Qwen3Moe.read_options(metadata, n_vocab), metadata)
