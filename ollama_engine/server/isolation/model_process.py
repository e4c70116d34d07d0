"""ModelProcess: a runner that belongs to this process, and ends with it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import sys
import tempfile
import threading
from pathlib import Path

import httpx

from ollama_engine.child_process import how_it_ended, start_child
from ollama_engine.errors import ConfigError, ModelProcessError, Option

__all__ = ["ModelProcess"]

log = logging.getLogger(__name__)

LONGEST_SOCKET_PATH = 100
"""Bytes of a Unix socket's path that every system takes: Linux has 108, others 104."""

START_SECONDS = 120.0
"""How long a process may take until it listens."""

CLOSE_SECONDS = 10.0
"""How long a process may take to end once it is told to."""


class ModelProcess:
    """A child process that computes one model, and a client that talks to it over a Unix socket.

    The socket lies in a folder that only this user can open. The child ends when its standard input does, which the
    system closes whenever this process ends, and on Linux is killed with it.
    """

    def __init__(self, model: Path, name: str) -> None:
        if getattr(sys, "frozen", False):  # its executable is the program itself, which would start itself for ever
            raise ConfigError(
                Option("isolation"), " 'process' needs a Python to start, and a frozen program has none",
                advice=["load the model in this process (isolation none)"],
            )  # fmt: skip
        self._name = name
        self._folder = _private_folder()
        socket = os.path.join(self._folder, "s")
        command = [
            sys.executable,
            "-m",
            "ollama_engine",
            "runner",
            "--model",
            str(model),
            "--socket",
            socket,
            "--child",
        ]
        try:
            self._process = start_child(command)
        except BaseException:
            self.remove_folder()
            raise
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self.engine_closed = False
        """Whether it has said that its engine takes no requests any more."""
        threading.Thread(target=self._wait, name=f"waits for {name}", daemon=True).start()
        self.client = httpx.AsyncClient(
            transport=httpx.AsyncHTTPTransport(uds=socket, limits=httpx.Limits(max_connections=None)),
            base_url="http://runner", timeout=None, trust_env=False,
        )  # fmt: skip

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def _wait(self) -> None:
        self._process.wait()
        with contextlib.suppress(RuntimeError):  # the loop is closed, and its tasks with it
            self._loop.call_soon_threadsafe(self._over.set)

    async def started(self) -> None:
        """Wait until it listens. Raises ModelProcessError where it ends, or takes too long."""
        end = self._loop.time() + START_SECONDS
        while not self._over.is_set() and self._loop.time() < end:
            try:
                await self.client.get("/health")
                return
            except httpx.TransportError:
                await asyncio.sleep(0.02)
        raise await self.lost()

    def over(self) -> bool:
        """Whether it has ended, or its engine has."""
        return self._over.is_set() or self.engine_closed

    async def ended(self) -> None:
        """Wait until it ends."""
        await self._over.wait()

    async def lost(self) -> ModelProcessError:
        """The error for a connection that broke: says how the process ended."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._over.wait(), 2.0)  # its socket closes a moment before it is gone
        return ModelProcessError(f"the process of model '{self._name}' {how_it_ended(self._process.returncode)}")

    async def close(self) -> None:
        """End it: by itself within some seconds, then by force. Requests that run end with ClosedError."""
        with contextlib.suppress(httpx.HTTPError):
            await self.client.post("/load", json={"Operation": 3}, timeout=CLOSE_SECONDS)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        try:
            await asyncio.wait_for(self._over.wait(), CLOSE_SECONDS)
        except asyncio.TimeoutError:
            log.warning("the process of %s does not end by itself and is killed", self._name)
            self._process.kill()
            await self._over.wait()
        await self.client.aclose()
        self.remove_folder()

    def remove_folder(self) -> None:
        """Remove the socket, so that no program connects any more."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def kill(self) -> None:
        """End it now."""
        self._process.kill()


def _private_folder() -> str:
    """A new folder for a socket, open to this user only, with a short path."""
    folder = tempfile.mkdtemp(prefix="oe-")
    if len(os.fsencode(folder)) <= LONGEST_SOCKET_PATH:
        return folder
    os.rmdir(folder)
    return tempfile.mkdtemp(prefix="oe-", dir="/tmp")
