"""create_app: the ASGI app, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import ollama_engine
from ollama_engine.errors import EngineError
from ollama_engine.server.anthropic.routes import router as anthropic_router
from ollama_engine.server.errors import ApiError, error_response
from ollama_engine.server.json_bodies import JsonBodies
from ollama_engine.server.library import Library
from ollama_engine.server.native.routes import router as native_router
from ollama_engine.server.ollama.models_routes import router as models_router
from ollama_engine.server.ollama.routes import router as ollama_router
from ollama_engine.server.ollama.transfer_routes import router as transfer_router
from ollama_engine.server.openai.routes import router as openai_router
from ollama_engine.server.page.routes import router as page_router
from ollama_engine.server.request_log import RequestLog
from ollama_engine.server.resident_models import ResidentModels
from ollama_engine.server.scheduling import ModelScheduler
from ollama_engine.server.service import Service
from ollama_engine.server.settings import ServerSettings
from ollama_engine.server.streaming import ClientGoneError
from ollama_engine.store.model_store import ModelStore

__all__ = ["create_app"]

ANSWERED = (ApiError, EngineError, ClientGoneError, RequestValidationError, HTTPException)
"""Errors that become responses. `RequestLog` answers all others."""


def create_app(
    settings: ServerSettings, *, library: Library | None = None, scheduler: ModelScheduler | None = None
) -> FastAPI:
    """The server as an ASGI app. What is not given is made from `settings`; at shutdown all models are unloaded."""
    library = library or Library(settings.files, ModelStore(settings.models))
    service = Service(settings, library, scheduler or ResidentModels(settings))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if not settings.noprune:
            await asyncio.to_thread(library.prune)
        yield
        await service.scheduler.close()

    app = FastAPI(title="ollama_engine", version=ollama_engine.__version__, lifespan=lifespan)
    app.state.service = service
    routers = (
        page_router,
        ollama_router,
        models_router,
        transfer_router,
        openai_router,
        anthropic_router,
        native_router,
    )
    for router in routers:
        app.include_router(router)
    for kind in ANSWERED:
        app.add_exception_handler(kind, error_response)
    for layer in (JsonBodies, RequestLog):  # the last one is the outermost
        app.add_middleware(layer)
    return app
