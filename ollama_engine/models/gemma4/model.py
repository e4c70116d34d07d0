"""Gemma 4 that reads images: the text model, and a vision part where the file has one."""

from __future__ import annotations

from ollama_engine.models.gemma4.multimodal import Gemma4Multimodal
from ollama_engine.models.gemma4.text import Gemma4Text
from ollama_engine.models.images import ImageReader


class Gemma4(ImageReader, Gemma4Text):
    vision_tensor = "v.patch_embd.weight"
    vision_part = Gemma4Multimodal
