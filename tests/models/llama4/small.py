"""Small parts of Llama 4 for its tests."""

from __future__ import annotations

from ollama_engine.ml.gguf.metadata import Metadata
from ollama_engine.models.llama4.preprocess import Preprocessor
from ollama_engine.models.llama4.vision import VisionOptions, read_options

VALUES = {
    "general.architecture": "llama4", "llama4.vision.block_count": 3, "llama4.vision.embedding_length": 32,
    "llama4.vision.feed_forward_length": 128, "llama4.vision.attention.head_count": 4, "llama4.vision.image_size": 56,
    "llama4.vision.patch_size": 14, "llama4.vision.pixel_shuffle_ratio": 0.5,
}  # fmt: skip
"""Keys of the vision part of a small file, as our converter and Ollama's write them."""


def options(**changes: float) -> VisionOptions:
    """`changes` of keys below `vision.`, with underscores for dots."""
    changed = {f"llama4.vision.{name.replace('__', '.')}": value for name, value in changes.items()}
    return read_options(Metadata({**VALUES, **changed}), n_text=64, n_adapter=40)


def preprocessor() -> Preprocessor:
    """One whose tiles have 56 pixels, and 4 embeddings."""
    return Preprocessor(Metadata(VALUES), options())
