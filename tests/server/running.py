"""A server in a thread of the test process, at a port that the system chooses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from queue import SimpleQueue

from fastapi import FastAPI

from ollama_engine import Engine
from ollama_engine.server.program import listener, make_server
from ollama_engine.server.settings import ServerSettings

__all__ = ["engine_of", "running"]

PATIENCE = 50


def engine_of(app: FastAPI, name: str = "demo:latest") -> Engine:
    """The engine of a model that the app has loaded."""
    (engine,) = (row.model.engine for row in app.state.service.manager.loaded() if row.model.stored.name == name)
    assert isinstance(engine, Engine)
    return engine


@contextmanager
def running(app: FastAPI) -> Iterator[str]:
    """Serve the app until the block ends, as `ollama-engine serve` does; gives its address, "http://127.0.0.1:PORT"."""
    settings: ServerSettings = replace(app.state.service.settings, host="127.0.0.1", port=0)
    told: SimpleQueue[str | BaseException] = SimpleQueue()
    server = make_server(settings, app, told.put)

    def serve() -> None:
        try:
            server.run(sockets=[sock])
        except BaseException as error:  # the test's thread tells it
            told.put(error)
            raise

    with listener(settings) as sock:
        thread = threading.Thread(target=serve, name="server")
        thread.start()
        try:
            address = told.get(timeout=PATIENCE)
            assert isinstance(address, str), address
            yield address
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server stops when it is told to"
