"""make_manager: the manager of a server, with models in its process or in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.server.isolation.loader import ProcessLoader
from ollama_engine.server.model_manager.loader import LocalLoader
from ollama_engine.server.model_manager.manager import ModelManager

if TYPE_CHECKING:
    from ollama_engine.server.library import Library
    from ollama_engine.server.settings import ServerSettings

__all__ = ["make_manager"]


def make_manager(settings: ServerSettings, library: Library | None = None) -> ModelManager:
    """The manager that these settings ask for. Models that leave this library do not sleep on."""
    loader = ProcessLoader(settings) if settings.isolation == "process" else LocalLoader(settings)
    return ModelManager(settings, loader, removed=library.removed if library else lambda stored: False)
