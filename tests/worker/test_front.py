"""WorkerFront where things fail that a worker cannot help: no process, no thread, a program that does not read."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.worker import front
from ollama_engine.worker.front import WorkerFront
from ollama_engine.worker.weight_cache import WeightCache
from tests.support.waiting import ended, eventually, join

PATIENCE = 50
ECHO = """
import socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[1]))) as listener:
    while True:
        with listener.accept()[0] as connection:
            while data := connection.recv(1024):
                connection.sendall(data)
"""
"""A process that serves."""


class FrontEndedError(Exception):
    """Ends a front."""


def starts(port: int, folder: str | None) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-S", "-c", ECHO, str(port)], stdin=subprocess.PIPE)


@contextlib.contextmanager
def served(
    start: Callable[[int, str | None], subprocess.Popen[bytes]], cache: WeightCache | None = None
) -> Iterator[tuple[tuple[str, int], list[str]]]:
    """The address of a front in a thread, and what it tells."""
    told: list[str] = []
    listener = socket.create_server(("127.0.0.1", 0))
    address, end = listener.getsockname(), threading.Event()
    front = WorkerFront(listener, start, told.append, cache)
    look = front._keep_one

    def look_for_the_end() -> None:
        if end.is_set():
            raise FrontEndedError
        look()

    front._keep_one = look_for_the_end  # type: ignore[method-assign]

    def serve() -> None:
        with contextlib.suppress(FrontEndedError):
            front.serve()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield address, told
        assert thread.is_alive(), "the front has ended"
    finally:
        end.set()
        thread.join(PATIENCE)
        front.close()


def echo(address: tuple[str, int]) -> bytes:
    """What a front answers; nothing where it hangs up."""
    with socket.create_connection(address, timeout=PATIENCE) as client, contextlib.suppress(ConnectionError):
        client.sendall(b"x")
        return client.recv(1)
    return b""


@pytest.mark.parametrize("error", [OSError("no process is left"), MemoryError()])
def test_a_program_that_gets_no_process_is_told(error: Exception, tmp_path: Path) -> None:
    """Its connection ends, rather than nothing being said on it, and nothing is left of the try."""
    left = [error, error]

    def start(port: int, folder: str | None) -> subprocess.Popen[bytes]:
        if left:
            raise left.pop()
        return starts(port, folder)

    with served(start, WeightCache(tmp_path / "kept")) as (address, told):
        assert echo(address) == b""
        eventually(lambda: len(told) == 2)  # after the connection is closed
        assert not list((tmp_path / "kept").iterdir())
        assert echo(address) == b"x"


def test_a_program_that_gets_no_thread_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front goes on, and the process that was taken for it is not lost."""
    start = threading.Thread.start
    left = ["_serve"]

    def start_others(self: Any) -> None:
        if self.name.endswith("(_serve)") and left:
            left.pop()
            raise RuntimeError("can't start new thread")
        start(self)

    monkeypatch.setattr(threading.Thread, "start", start_others)
    with served(starts) as (address, told):
        assert echo(address) == b""
        assert echo(address) == b"x"
        assert told == ["a connection is lost: can't start new thread"]


@pytest.mark.parametrize("kept", [False, True])
def test_a_program_that_leaves_and_does_not_read(monkeypatch: pytest.MonkeyPatch, kept: bool) -> None:
    """It has ended what it sends, and never reads what it is sent: its place is free after LEAVE_SECONDS.

    `kept`: a driver keeps the killed process, which says nothing more.
    """
    monkeypatch.setattr(front, "LEAVE_SECONDS", 0.1)

    class Serving:
        def end(self) -> None:
            if not kept:
                process.close()

    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as ends:

        def pair() -> tuple[socket.socket, socket.socket]:
            first = ends.enter_context(socket.create_connection(listener.getsockname()))
            return first, ends.enter_context(listener.accept()[0])

        (program, client), (process, inside) = pair(), pair()

        def answer() -> None:
            with contextlib.suppress(OSError):
                while not kept:
                    process.sendall(bytes(1 << 16))

        program.shutdown(socket.SHUT_WR)
        answering = threading.Thread(target=answer, daemon=True)
        answering.start()
        exchange = threading.Thread(target=front._exchange, args=(client, inside, Serving()), daemon=True)
        exchange.start()
        join(exchange)
        program.close()
        inside.close()
        join(answering)


def test_a_killed_process_that_a_driver_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends without it."""
    monkeypatch.setattr(front, "LEAVE_SECONDS", 0.1)
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], stdin=subprocess.PIPE)
    with process, socket.create_server(("127.0.0.1", 0)) as listener, monkeypatch.context() as patch:
        patch.setattr(process, "kill", lambda: None)
        worker = WorkerFront(listener, lambda port, folder: process, lambda text: None, None)
        worker._started()
        assert ended(worker.close) is None
        assert process.poll() is None
        patch.undo()
        process.kill()
