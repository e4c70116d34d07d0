"""A server in a thread of the test process, at a port that the system chooses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from ollama_engine.server.app import create_app
from ollama_engine.server.program import listener, make_server
from ollama_engine.server.service import Service
from ollama_engine.server.settings import ServerSettings

__all__ = ["RunningServer", "running_server"]

PATIENCE = 60


@dataclass(frozen=True)
class RunningServer:
    """A server that answers at `url`; `service` is what its routes share."""

    url: str
    service: Service

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextmanager
def running_server(settings: ServerSettings, **parts: Any) -> Iterator[RunningServer]:
    """A server with these settings, and `parts` of `create_app`, until the block ends."""
    app = create_app(settings, **parts)
    urls: SimpleQueue[str] = SimpleQueue()
    server = make_server(settings, app, urls.put)
    with listener(settings) as sock:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="test server")
        thread.start()
        try:
            yield RunningServer(urls.get(timeout=PATIENCE), app.state.service)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
            assert not thread.is_alive(), "the server stops when it is told to"
