"""Gemma 3 that reads images: the text model, and a vision part where the file has one."""

from __future__ import annotations

from ollama_engine.models.gemma3.multimodal import Gemma3Multimodal
from ollama_engine.models.gemma3.text import Gemma3Text
from ollama_engine.models.images import ImageReader


class Gemma3(ImageReader, Gemma3Text):
    vision_tensor = "v.patch_embedding.weight"
    vision_part = Gemma3Multimodal
