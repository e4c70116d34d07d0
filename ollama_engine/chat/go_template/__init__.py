"""Templates in Go's text/template syntax, as Ollama's Modelfiles have them."""

from __future__ import annotations

from ollama_engine.chat.go_template.template import GoTemplate

__all__ = ["GoTemplate"]
