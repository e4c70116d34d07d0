"""Mistral 3 that reads images: the text model, and a vision part where the file has one."""

from __future__ import annotations

from ollama_engine.models.images import ImageReader
from ollama_engine.models.mistral3.multimodal import PixtralMultimodal
from ollama_engine.models.mistral3.text import Mistral3Text


class Mistral3(ImageReader, Mistral3Text):
    architecture = "mistral3"

    vision_tensor = "v.patch_conv.weight"
    vision_part = PixtralMultimodal
