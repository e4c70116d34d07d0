"""Idefics 3 and SmolVLM: a Llama that reads images in tiles. Source: Laurençon et al. 2024 (arXiv 2408.12637)."""

from __future__ import annotations

from ollama_engine.models.idefics3.model import Idefics3

__all__ = ["Idefics3"]
