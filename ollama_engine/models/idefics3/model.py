"""Idefics 3 and SmolVLM: the text model is a Llama, and the file has a vision part or not."""

from __future__ import annotations

from ollama_engine.models.idefics3.multimodal import Idefics3Multimodal
from ollama_engine.models.images import ImageReader
from ollama_engine.models.llama import Llama


class Idefics3(ImageReader, Llama):
    architecture = "idefics3"

    vision_tensor = "v.patch_embedding.weight"
    vision_part = Idefics3Multimodal
