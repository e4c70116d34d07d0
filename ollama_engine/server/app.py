"""create_app: the ASGI app, put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

import ollama_engine
from ollama_engine.errors import EngineError
from ollama_engine.server.anthropic.errors import error_body as anthropic_error
from ollama_engine.server.anthropic.routes import router as anthropic_router
from ollama_engine.server.errors import ApiError, ClientGoneError, error_response
from ollama_engine.server.json_bodies import JsonBodies
from ollama_engine.server.library import Library
from ollama_engine.server.managing import ManagesModels
from ollama_engine.server.model_manager.making import make_manager
from ollama_engine.server.native.routes import router as native_router
from ollama_engine.server.ollama.models_routes import router as models_router
from ollama_engine.server.ollama.routes import router as ollama_router
from ollama_engine.server.ollama.transfer_routes import router as transfer_router
from ollama_engine.server.openai.errors import error_body as openai_error
from ollama_engine.server.openai.routes import router as openai_router
from ollama_engine.server.page.routes import router as page_router
from ollama_engine.server.request_log import RequestLog
from ollama_engine.server.safety.api_keys import ApiKeys
from ollama_engine.server.safety.body_limits import BodyLimits
from ollama_engine.server.safety.browsers import BrowserGuard, is_loopback
from ollama_engine.server.service import Service
from ollama_engine.server.settings import ServerSettings
from ollama_engine.store.model_store import ModelStore

__all__ = ["create_app"]

THREADS = 64
"""Calls that wait for the disk, or for a library that knows no event loop, at a time. Idle ones cost nothing."""
ANSWERED = (ApiError, EngineError, ClientGoneError, RequestValidationError, HTTPException)
"""Errors that become responses. `RequestLog` answers all others."""
OPENAI_PATHS = ("/v1/", "/tokenize", "/detokenize", "/apply-template", "/rerank", "/slots", "/trace", "/metrics")
ERROR_FORMS = (("/v1/messages", anthropic_error), *((prefix, openai_error) for prefix in OPENAI_PATHS))
"""Paths whose errors have another form than Ollama's."""


def create_app(
    settings: ServerSettings, *, library: Library | None = None, manager: ManagesModels | None = None
) -> FastAPI:
    """The server as an ASGI app. What is not given is made from `settings`; at shutdown all models are unloaded."""
    library = library or Library(settings.files, ModelStore(settings.models), max_transfers=settings.max_transfers)
    service = Service(settings, library, manager or make_manager(settings, library))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        # Python's own default is six threads on two cores: as many slow disks or hubs would hold up all requests.
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, "server"))
        if not settings.noprune:
            await asyncio.to_thread(library.prune)
        yield
        await service.manager.close()

    app = FastAPI(title="ollama_engine", version=ollama_engine.__version__, lifespan=lifespan)
    app.state.service = service
    app.state.error_forms = ERROR_FORMS
    app.state.ending = asyncio.Event()  # the server sets it: answers that still run end with an error
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
    # The last one is the outermost.
    app.add_middleware(JsonBodies)
    app.add_middleware(BodyLimits, largest=settings.max_body, pause=settings.read_timeout)
    app.add_middleware(ApiKeys, keys=settings.api_keys)
    app.add_middleware(BrowserGuard, origins=settings.origins, checks_hosts=is_loopback(settings.host))
    app.add_middleware(RequestLog)
    return app
