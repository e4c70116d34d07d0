"""DeepSeek-OCR: `general.architecture` = deepseek2-ocr. Source: Wei et al. 2025 (arXiv:2510.18234)."""

from __future__ import annotations

from ollama_engine.models.deepseek_ocr.model import DeepSeekOcr

__all__ = ["DeepSeekOcr"]
