"""LLaVA 1.5 and 1.6: a Llama that reads images with CLIP's tower. Source: Liu et al. 2023 (arXiv 2310.03744)."""

from __future__ import annotations

from ollama_engine.models.llava.model import Llava

__all__ = ["Llava"]
