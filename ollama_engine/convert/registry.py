"""Class names in config.json -> how to convert such a model, by the converters in `ollama_engine.architectures`."""

from __future__ import annotations

from importlib import import_module

from ollama_engine.architectures import ARCHITECTURES
from ollama_engine.convert.architecture import Architecture
from ollama_engine.convert.source.folder import Config
from ollama_engine.errors import UnsupportedModelError

__all__ = ["architectures", "find_architecture"]


def architectures() -> tuple[Architecture, ...]:
    """All that can be converted."""
    modules = dict.fromkeys(row.converter for row in ARCHITECTURES if row.converter is not None)
    found: list[Architecture] = []
    for name in modules:
        found += import_module(f"ollama_engine.convert.{name}").ARCHITECTURES
    return tuple(found)


def find_architecture(config: Config) -> Architecture:
    """The one that `architectures` of config.json names. Raises UnsupportedModelError that lists the supported."""
    names = config.get("architectures", default=[])
    # Those for some models of a class first.
    known = sorted(architectures(), key=lambda architecture: architecture.fits is None)
    for name in names if isinstance(names, list) else []:
        for architecture in known:
            if name in architecture.classes and (architecture.fits is None or architecture.fits(config)):
                return architecture
    supported = ", ".join(sorted({name for architecture in known for name in architecture.classes}))
    raise UnsupportedModelError(
        f"{config.home}: architectures is {names!r}, which cannot be converted; supported: {supported}"
    )
