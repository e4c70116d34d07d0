"""serve: the app under uvicorn, as a process: signals, graceful shutdown, one log."""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import uvicorn

from ollama_engine.errors import ConfigError, Option
from ollama_engine.server.app import create_app
from ollama_engine.server.managing import ManagesModels
from ollama_engine.server.safety.http_protocol import limited_http
from ollama_engine.server.settings import ServerSettings

__all__ = ["Server", "serve"]

log = logging.getLogger(__name__)
LAST_WORDS_SECONDS = 2
"""How long answers may take to end with an error, once they have to. Then uvicorn cancels them."""
SAME_WISH_SECONDS = 0.3
"""A signal that comes so soon after another is no second one: GNU timeout signals a child, and then its group."""
WHAT_TO_DO = {
    errno.EADDRINUSE: "; another server listens there: stop it, or choose another --port",
    errno.EACCES: "; this user may not listen there: choose a --port from 1024",
}
"""Behind the system's message, where it does not listen."""
OWN_ADDRESS = "an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them"
SWITCH_SECONDS = 0.0005
"""How long a thread may hold Python's lock while another one wants it. Python's 5 ms are more than a step of a small
model takes, and an event loop of many streams is always busy."""


class Server(uvicorn.Server):
    """uvicorn's server, that says when it listens, and where.

    The first SIGINT or SIGTERM stops it: no new connections, and running answers have `patience` seconds. Then `ending`
    is set, by which they end with an error. The second signal ends them at once.
    """

    def __init__(
        self, config: uvicorn.Config, listening: Callable[[str], None], patience: float, ending: asyncio.Event
    ) -> None:
        super().__init__(config)
        self._listening = listening
        self._patience = patience
        self._ending = ending
        self._told_at = 0.0

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            self._listening(url_of(sockets[0]))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. Nothing is logged here: the log may be in the middle of a line."""
        if self.should_exit and time.monotonic() < self._told_at + SAME_WISH_SECONDS:
            return
        if self.should_exit:
            os.write(2, b"ended by a second signal\n")
            os._exit(128 + sig)  # files are written so that they outlive it
        self.should_exit = True
        self._told_at = time.monotonic()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop: no new connections; wait for answers; unload the models."""
        patience = "all the time they take" if self._patience == math.inf else f"{self._patience} s"
        log.info("stopping; running answers have %s, a second signal ends them", patience)
        if self._patience < math.inf:
            asyncio.get_running_loop().call_later(self._patience, self._ending.set)
        await super().shutdown(sockets)

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take both signals, without raising them again at the end: to be told to stop is no failure."""
        try:
            before = {sig: signal.signal(sig, self.handle_exit) for sig in (signal.SIGINT, signal.SIGTERM)}
        except ValueError:  # not the main thread
            yield
            return
        try:
            yield
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)


def make_server(settings: ServerSettings, app: Any, listening: Callable[[str], None]) -> Server:
    """uvicorn's server for an app."""
    patience = settings.shutdown_timeout
    if patience < math.inf:
        patience = max(1, round(patience))
    config = uvicorn.Config(
        app,
        http=limited_http(settings.read_timeout),
        log_config=None,
        access_log=False,
        lifespan="on",
        timeout_graceful_shutdown=None if patience == math.inf else int(patience) + LAST_WORDS_SECONDS,
        server_header=False,
        ws="none",
    )
    return Server(config, listening, patience, app.state.ending)


def serve(
    settings: ServerSettings, listening: Callable[[str], None], manager: ManagesModels | None = None
) -> None:  # fmt: skip
    """Serve until a signal comes. `listening` is told the server's URL; models are those of `manager`, where given.

    Raises OSError where the port is taken.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    server = make_server(settings, create_app(settings, manager=manager), listening)
    with listener(settings) as sock:
        server.run(sockets=[sock])


def listener(settings: ServerSettings) -> socket.socket:
    """A socket that listens. Raises ConfigError where the host is not this machine's; OSError with the address."""
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((settings.host, settings.port))
    except OSError as error:
        sock.close()
        address = f"{settings.host}:{settings.port}"
        if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
            raise ConfigError(Option("host"), f" is {OWN_ADDRESS}; {address}: {error.strerror}") from None
        told = f"{error.strerror}{WHAT_TO_DO.get(error.errno or 0, '')}"
        raise OSError(error.errno, told, address) from None
    except TypeError:  # of characters, or dots, that no name has
        sock.close()
        raise ConfigError(Option("host"), f" is {OWN_ADDRESS}; got {settings.host!r}") from None
    sock.set_inheritable(True)
    return sock


def url_of(sock: socket.socket) -> str:
    """The URL of a socket's address."""
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
