"""InternVL 3: a Qwen that reads images in tiles. Source: Zhu et al. 2025 (arXiv 2504.10479)."""

from __future__ import annotations

from ollama_engine.models.internvl.model import InternVLQwen2, InternVLQwen3

__all__ = ["InternVLQwen2", "InternVLQwen3"]
