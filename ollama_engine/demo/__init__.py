"""The packaged demo model: a small story-telling llama, made by `examples/demo_model`."""

from __future__ import annotations

from pathlib import Path

__all__ = ["path"]


def path() -> Path:
    """The demo model's GGUF file, installed beside this module."""
    return Path(__file__).with_name("demo.gguf")
