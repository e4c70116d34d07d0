"""Qwen2.5-VL: the text model, and a vision part where the file has one."""

from __future__ import annotations

from ollama_engine.models.qwen25vl.images import QwenImageReader
from ollama_engine.models.qwen25vl.multimodal import Qwen25VLMultimodal
from ollama_engine.models.qwen25vl.text import Qwen25VLText


class Qwen25VL(QwenImageReader, Qwen25VLText):
    architecture = "qwen25vl"

    vision_tensor = "v.patch_embd_0.weight"
    vision_part = Qwen25VLMultimodal
