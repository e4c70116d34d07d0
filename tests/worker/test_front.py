"""WorkerFront where things fail that a worker cannot help: no process, no thread, a program that does not read."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ollama_engine.child_process import start_child
from ollama_engine.ml.device.worker_address import WorkerAddress
from ollama_engine.ml.workers.worker_client import WorkerClient
from ollama_engine.worker import front
from ollama_engine.worker.front import WorkerFront
from ollama_engine.worker.weight_cache import WeightCache
from tests.support.waiting import ended, eventually, join

PATIENCE = 50
ECHO = """
import socket, sys
with socket.socket(fileno=int(sys.argv[1])) as front:
    front.send(b"1")
    while found := socket.recv_fds(front, 1, 1)[1]:
        with socket.socket(fileno=found[0]) as connection:
            while data := connection.recv(1024):
                connection.sendall(data)
"""
"""A process that serves."""


class FrontEndedError(Exception):
    """Ends a front."""


def starts(connections: int, folder: str | None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-S", "-c", ECHO, str(connections)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=[connections])


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

    def start(connections: int, folder: str | None) -> subprocess.Popen[bytes]:
        if left:
            raise left.pop()
        return starts(connections, folder)

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


@pytest.mark.parametrize("first", ["program", "process"])
def test_who_hung_up_first(first: str) -> None:
    """The other hangs up as soon as it is told, before the front goes on: a dead process must not be used again."""

    class Slow(socket.socket):
        """One end of the front: the other side has hung up, too, before the first shutdown returns."""

        def shutdown(self, how: int) -> None:
            super().shutdown(how)
            ends.close()
            if not told.is_set():
                told.set()
                threading.Event().wait(0.3)  # the other direction has time to run

    told = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as ends:

        def pair() -> tuple[socket.socket, socket.socket]:
            outer = ends.enter_context(socket.create_connection(listener.getsockname()))
            return outer, Slow(fileno=listener.accept()[0].detach())

        (program, client), (process, inside) = pair(), pair()
        with client, inside:
            (program if first == "program" else process).close()
            assert front._exchange(client, inside, None) is (first == "program")  # type: ignore[arg-type]


def test_a_killed_process_that_a_driver_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker ends without it."""
    monkeypatch.setattr(front, "LEAVE_SECONDS", 0.1)
    process = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], stdin=subprocess.PIPE)
    with process, socket.create_server(("127.0.0.1", 0)) as listener, monkeypatch.context() as patch:
        patch.setattr(process, "kill", lambda: None)
        worker = WorkerFront(listener, lambda connections, folder: process, lambda text: None, None)
        worker._started()
        assert ended(worker.close) is None
        assert process.poll() is None
        patch.undo()
        process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_serving_process_listens_nowhere() -> None:
    """Each connection is handed to it: a port of loopback would take whoever of the machine comes first."""
    processes: list[subprocess.Popen[bytes]] = []

    def start(connections: int, folder: str | None) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "ollama_engine", "worker", "--device", "CPU", "-t", "1"]
        processes.append(start_child([*command, "--child", str(connections)], descriptors=[connections]))
        return processes[-1]

    with served(start) as (address, told), WorkerClient(WorkerAddress(*address)) as client:
        assert client.devices()
        (process,) = processes
        assert not listening(process.pid)
        assert process.poll() is None
    assert not told


def listening(pid: int) -> list[str]:
    """The addresses of TCP sockets of a process that listen."""
    folder = f"/proc/{pid}/fd"
    held = {os.readlink(f"{folder}/{name}") for name in os.listdir(folder)}
    with open(f"/proc/{pid}/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return [row[1] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in held]
