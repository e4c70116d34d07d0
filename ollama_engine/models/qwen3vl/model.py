"""Qwen3-VL: the text models, and a vision part where the file has one."""

from __future__ import annotations

from ollama_engine.models.qwen3vl.multimodal import VISION_TENSOR, Qwen3VLMultimodal
from ollama_engine.models.qwen3vl.text import Qwen3VLMoeText, Qwen3VLText
from ollama_engine.models.qwen25vl.images import QwenImageReader


class Qwen3VL(QwenImageReader, Qwen3VLText):
    architecture = "qwen3vl"

    vision_tensor = VISION_TENSOR
    vision_part = Qwen3VLMultimodal


class Qwen3VLMoe(QwenImageReader, Qwen3VLMoeText):
    architecture = "qwen3vlmoe"

    vision_tensor = VISION_TENSOR
    vision_part = Qwen3VLMultimodal
