"""A server in a thread, at a port that the system chooses."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

__all__ = ["running"]


@contextmanager
def running(app: Any) -> Iterator[str]:
    """Serve an ASGI app until the block ends; gives its address, "http://127.0.0.1:PORT"."""
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="on"))
    failed: list[BaseException] = []

    def serve() -> None:
        try:
            server.run(sockets=[listening])
        except BaseException as error:  # the test's thread tells it
            failed.append(error)

    thread = threading.Thread(target=serve, name="server")
    thread.start()
    try:
        while not server.started and thread.is_alive():
            thread.join(0.01)
        assert server.started, failed
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(60)
        listening.close()
    assert not failed
