"""Model definitions: one file for each text architecture, found by name through the registry."""

from __future__ import annotations

from ollama_engine.models.base import (
    Embeds,
    EmbedsImages,
    FitsContext,
    ImageTower,
    MakesLogits,
    Model,
    ModelInputs,
    Multimodal,
    ProjectsVectors,
    Ranks,
    ReadsMedia,
    ShiftsKeys,
    TextEncoder,
    VariesGraphs,
)
from ollama_engine.models.dialects import known_names, known_values
from ollama_engine.models.registry import architectures, model_class, ties_output

__all__ = [
    "Embeds",
    "EmbedsImages",
    "FitsContext",
    "ImageTower",
    "MakesLogits",
    "Model",
    "ModelInputs",
    "Multimodal",
    "ProjectsVectors",
    "Ranks",
    "ReadsMedia",
    "ShiftsKeys",
    "TextEncoder",
    "VariesGraphs",
    "architectures",
    "known_names",
    "known_values",
    "model_class",
    "ties_output",
]
