"""Mistral Small 3.1 and later, with Pixtral's vision tower: `general.architecture` = mistral3."""

from __future__ import annotations

from ollama_engine.models.mistral3.model import Mistral3

__all__ = ["Mistral3"]
