"""The packaged demo models, each made from nothing by a folder of `examples/`.

A small story-telling llama (`demo_model`), and a tiny gemma 3 that sees coloured shapes (`demo_vision`).
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["path", "picture_path", "vision_path"]


def path() -> Path:
    """The story-teller's GGUF file, installed beside this module."""
    return Path(__file__).with_name("demo.gguf")


def vision_path() -> Path:
    """The GGUF file of the model that sees: it answers questions about pictures of coloured shapes."""
    return Path(__file__).with_name("demo-vision.gguf")


def picture_path() -> Path:
    """A picture for the model that sees: a red circle at the top left and a yellow square in the middle."""
    return Path(__file__).with_name("shapes.png")
