"""Gemma 4's vision part in llama.cpp's files ("mmproj"), whose names the model reads."""

from __future__ import annotations

from ollama_engine.models.projectors import Projector, tower_keys

PROJECTOR = Projector(
    "gemma4",
    types=("gemma4v", "gemma4uv"),
    keys=tower_keys("vision.projector.scale_factor", "vision.max_soft_tokens"),
    names=(),
)
