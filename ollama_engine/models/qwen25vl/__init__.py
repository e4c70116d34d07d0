"""Qwen2.5-VL: `general.architecture` = qwen25vl, and qwen2vl in llama.cpp's files."""

from __future__ import annotations

from ollama_engine.models.qwen25vl.model import Qwen25VL

__all__ = ["Qwen25VL"]
