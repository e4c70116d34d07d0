"""create_app: the ASGI app, put together."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

import ollama_engine
from ollama_engine.errors import EngineError
from ollama_engine.server.anthropic.routes import router as anthropic_router
from ollama_engine.server.errors import ApiError, error_response
from ollama_engine.server.library import Library
from ollama_engine.server.native.routes import router as native_router
from ollama_engine.server.ollama.routes import router as ollama_router
from ollama_engine.server.openai.routes import router as openai_router
from ollama_engine.server.page.routes import router as page_router
from ollama_engine.server.scheduler.loader import LocalLoader
from ollama_engine.server.scheduler.scheduler import Scheduler
from ollama_engine.server.scheduling import ModelScheduler
from ollama_engine.server.service import Service
from ollama_engine.server.settings import ServerSettings
from ollama_engine.server.streaming import ClientGoneError

__all__ = ["create_app"]


def create_app(
    settings: ServerSettings, *, library: Library | None = None, scheduler: ModelScheduler | None = None
) -> FastAPI:
    """The server as an ASGI app. What is not given is made from `settings`; at shutdown all models are unloaded."""
    service = Service(
        settings, library or Library(settings.files), scheduler or Scheduler(settings, LocalLoader(settings))
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.scheduler.close()

    app = FastAPI(title="ollama_engine", version=ollama_engine.__version__, lifespan=lifespan)
    app.state.service = service
    for router in (page_router, ollama_router, openai_router, anthropic_router, native_router):
        app.include_router(router)
    for kind in (ApiError, EngineError, ClientGoneError):
        app.add_exception_handler(kind, error_response)
    return app
