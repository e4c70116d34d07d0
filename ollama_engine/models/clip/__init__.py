"""CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023): vectors of texts and images, or of images alone."""

from __future__ import annotations

from ollama_engine.models.clip.model import ClipDual, ClipVision, SiglipDual, SiglipVision

__all__ = ["ClipDual", "ClipVision", "SiglipDual", "SiglipVision"]
