"""Llama 4 that reads images: the text model, and a vision part where the file has one."""

from __future__ import annotations

from ollama_engine.models.images import ImageReader
from ollama_engine.models.llama4.multimodal import Llama4Multimodal
from ollama_engine.models.llama4.text import Llama4Text


class Llama4(ImageReader, Llama4Text):
    vision_tensor = "v.patch_embedding.weight"
    vision_part = Llama4Multimodal
