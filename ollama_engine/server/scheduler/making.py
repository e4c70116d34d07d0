"""make_scheduler: the scheduler of a server, with models in its process or in processes of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ollama_engine.server.isolation.loader import ProcessLoader
from ollama_engine.server.scheduler.loader import LocalLoader
from ollama_engine.server.scheduler.scheduler import Scheduler

if TYPE_CHECKING:
    from ollama_engine.server.settings import ServerSettings

__all__ = ["make_scheduler"]


def make_scheduler(settings: ServerSettings) -> Scheduler:
    """The scheduler that these settings ask for."""
    loader = ProcessLoader(settings) if settings.isolation == "process" else LocalLoader(settings)
    return Scheduler(settings, loader)
