"""Qwen2.5-VL: the text model, and a vision part where the file has one."""

from __future__ import annotations

from ollama_engine.models.images import ImageReader
from ollama_engine.models.qwen25vl.multimodal import Qwen25VLMultimodal
from ollama_engine.models.qwen25vl.text import Qwen25VLText


class Qwen25VL(ImageReader, Qwen25VLText):
    architecture = "qwen25vl"

    vision_tensor = "v.patch_embd_0.weight"
    vision_part = Qwen25VLMultimodal

    multimodal: Qwen25VLMultimodal | None

    def fit_context(self, num_ctx: int) -> None:
        """Published limits let a photograph take 16,384 inputs, more than most contexts have."""
        if self.multimodal is not None:
            self.multimodal.fit_context(num_ctx)
