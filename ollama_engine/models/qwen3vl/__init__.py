"""Qwen3-VL, dense and with experts: `general.architecture` = qwen3vl or qwen3vlmoe."""

from __future__ import annotations

from ollama_engine.models.qwen3vl.model import Qwen3VL, Qwen3VLMoe

__all__ = ["Qwen3VL", "Qwen3VLMoe"]
