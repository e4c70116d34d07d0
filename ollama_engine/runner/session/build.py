"""build_digest: tells builds apart that have the same version, and may compute other bits."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

import ollama_engine

__all__ = ["build_digest"]

ROOMS = ("_lib", "kvcache", "ml", "models", "multimodal", "nn", "runner/execute", "runner/media")
"""Folders of the package whose code computes keys and values, pixels included. `_lib` has ggml's libraries."""
SUFFIXES = (".py", ".so", ".dylib", ".dll", ".pyd")


@cache
def build_digest() -> str:
    """SHA-256 over the code that keys and values depend on: compiled kernels, operations, models.

    Contents only, so that the same wheel installed twice is one build.
    """
    digest = hashlib.sha256()
    for room in ROOMS:
        # An editable install has two folders: sources, and what is compiled of them.
        folders = [Path(folder, room) for folder in ollama_engine.__path__]
        named = [(path.relative_to(folder).as_posix(), path) for folder in folders for path in folder.rglob("*")]
        for name, path in sorted(named):
            if path.suffix in SUFFIXES:
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{room}/{name} {content}\n".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()
