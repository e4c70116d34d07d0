"""The HTTP server: Ollama's, OpenAI's and Anthropic's APIs, translated to calls of engines.

    from ollama_engine.server import ServerSettings, create_app

    app = create_app(ServerSettings.from_environment(os.environ))  # ASGI: uvicorn runs it

Needs the extra `server`. Translation only: what computes, samples and schedules is in the rooms below.
"""

from __future__ import annotations

from ollama_engine.lazy import lazy_names

__all__ = ["ServerSettings", "create_app"]

_HOMES = {"ServerSettings": "settings", "create_app": "app"}

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
