"""The halves of CLIP (Radford et al. 2021) and SigLIP (Zhai et al. 2023) that make a vector of an image."""

from __future__ import annotations

from ollama_engine.models.clip.model import ClipVision, SiglipVision

__all__ = ["ClipVision", "SiglipVision"]
