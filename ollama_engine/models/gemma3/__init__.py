"""Gemma 3: a text model, and a SigLIP tower that reads images. Source: Gemma team 2025 (arXiv 2503.19786)."""

from __future__ import annotations

from ollama_engine.models.gemma3.model import Gemma3

__all__ = ["Gemma3"]
