"""Gemma 4. Source: Google 2026; transformers' Gemma4ForConditionalGeneration."""

from __future__ import annotations

from ollama_engine.models.gemma4.text import Gemma4Text

__all__ = ["Gemma4Text"]
