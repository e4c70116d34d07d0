"""Llama 4: a text model with experts, and a tower that reads images in tiles. Source: Meta 2025."""

from __future__ import annotations

from ollama_engine.models.llama4.model import Llama4

__all__ = ["Llama4"]
