"""Gemma 4. Source: Google 2026; transformers' Gemma4ForConditionalGeneration."""

from __future__ import annotations

from ollama_engine.models.gemma4.model import Gemma4

__all__ = ["Gemma4"]
