"""The program of a model's process: serves its app on a Unix socket, or on a port of loopback."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from ollama_engine.child_process import end_with_parent
from ollama_engine.server.errors import ApiError
from ollama_engine.server.isolation.hosted_model import HostedModel
from ollama_engine.server.isolation.model_server_app import runner_app
from ollama_engine.server.safety.browsers import BrowserGuard

__all__ = ["run"]

END_SECONDS = 5.0
"""How long a child may take to end once its server is gone, whatever it computes."""


def run(model: str, *, socket: str | None, port: int | None, child: bool, token: str = "") -> None:
    """Serve one model until the process is told to end. `child`: it belongs to the program that started it."""
    where: dict[str, Any] = {"host": "127.0.0.1", "port": port} if socket is None else {"uds": socket}
    app: ASGIApp = runner_app(HostedModel(model), token)
    if socket is None:
        app = without_sites(app)
    # Answers that still run are cancelled at once: who asked for the end has ended them, or is gone.
    config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_graceful_shutdown=1, **where)
    server = _ChildServer(config) if child else uvicorn.Server(config)
    if child:
        end_with_parent(lambda: _stop(server))
    server.run()


def without_sites(app: ASGIApp) -> ASGIApp:
    """The app, kept from web sites that a browser on this machine shows."""
    guard = BrowserGuard(app)

    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await guard(scope, receive, send)
        except ApiError as error:
            await JSONResponse({"error": str(error)}, error.status)(scope, receive, send)

    return guarded


class _ChildServer(uvicorn.Server):
    """A server that leaves signals alone: its parent decides."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _stop(server: uvicorn.Server) -> None:
    server.should_exit = True
    timer = threading.Timer(END_SECONDS, os._exit, (1,))
    timer.daemon = True
    timer.start()
