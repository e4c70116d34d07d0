"""Architecture name -> model class, imported when first asked for.

Other packages add architectures through the entry point group `ollama_engine.models`, whose entries are named as
`general.architecture` and point to a class.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, cast

from ollama_engine.errors import UnsupportedModelError
from ollama_engine.models.base import Model

ENTRY_POINTS = "ollama_engine.models"

_BUILT_IN = {
    "llama": "ollama_engine.models.llama:Llama",
    "qwen2": "ollama_engine.models.qwen2:Qwen2",
    "qwen3": "ollama_engine.models.qwen3:Qwen3",
}


def architectures() -> tuple[str, ...]:
    """Names of all architectures, those of other packages included."""
    return tuple(sorted({*_BUILT_IN, *(e.name for e in entry_points(group=ENTRY_POINTS))}))


def model_class(architecture: str) -> type[Model]:
    """The class for `general.architecture`. Raises UnsupportedModelError that lists the known ones."""
    target = _BUILT_IN.get(architecture)
    if target is not None:
        module, name = target.split(":")
        return cast("type[Model]", getattr(import_module(module), name))
    for entry in entry_points(group=ENTRY_POINTS):
        if entry.name == architecture:
            loaded: Any = entry.load()
            return cast("type[Model]", loaded)
    raise UnsupportedModelError(
        f"architecture {architecture!r} is not supported; supported: {', '.join(architectures())}"
    )
