"""InternVL over Qwen: 3 has the text model of Qwen2.5, 3.5 that of Qwen3, and the file has a vision part or not."""

from __future__ import annotations

from ollama_engine.models.images import ImageReader
from ollama_engine.models.internvl.multimodal import InternVLMultimodal
from ollama_engine.models.qwen2 import Qwen2
from ollama_engine.models.qwen3 import Qwen3


class InternVLQwen2(ImageReader, Qwen2):
    architecture = "internvl-qwen2"

    vision_tensor = "v.patch_embedding.weight"
    vision_part = InternVLMultimodal


class InternVLQwen3(ImageReader, Qwen3):
    architecture = "internvl-qwen3"

    vision_tensor = "v.patch_embedding.weight"
    vision_part = InternVLMultimodal
