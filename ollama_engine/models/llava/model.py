"""LLaVA: the text model is a Llama, and the file has a vision part or not."""

from __future__ import annotations

from ollama_engine.models.images import ImageReader
from ollama_engine.models.llama import Llama
from ollama_engine.models.llava.multimodal import LlavaMultimodal


class Llava(ImageReader, Llama):
    architecture = "llava"

    vision_tensor = "v.patch_embedding.weight"
    vision_part = LlavaMultimodal
