"""RelayPorts, without ggml and workers."""

from __future__ import annotations

import os
import socket
import threading

import pytest

from ollama_engine.errors import DeviceError
from ollama_engine.ml.workers import relay_ports
from ollama_engine.ml.workers.relay_ports import RelayPorts
from tests.support.waiting import join


def used(ports: RelayPorts, worker: object) -> int:
    """The port that a worker gets; it is given back."""
    with ports.listen(worker) as listener:
        port = int(listener.getsockname()[1])
    ports.give_back(port, worker)
    return port


def test_a_worker_gets_its_own_ports_again() -> None:
    ports = RelayPorts()
    first, second = used(ports, "a"), used(ports, "b")
    assert first != second
    assert [used(ports, name) for name in ("b", "a", "b")] == [second, first, second]


def test_a_port_that_is_not_given_back_is_nobodys() -> None:
    ports = RelayPorts()
    with ports.listen("a") as listener:
        port = listener.getsockname()[1]
    assert used(ports, "a") != port


def test_a_port_where_another_program_listens_is_left_alone() -> None:
    ports = RelayPorts()
    port = used(ports, "a")
    with socket.create_server(("127.0.0.1", port)):
        other = used(ports, "a")
    assert other != port
    assert used(ports, "a") == port


def test_ports_of_before_a_fork_are_not_the_childs(monkeypatch: pytest.MonkeyPatch) -> None:
    """ggml's connection to one of them may stand in the child's copy of its map, where no thread serves it."""
    ports = RelayPorts()
    port = used(ports, "a")
    monkeypatch.setattr(os, "getpid", lambda: -1)
    assert used(ports, "a") != port


def test_no_port_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system has few, and all were used for others: that is said after some tries, and none is kept open."""
    ports, create = RelayPorts(), socket.create_server
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay_ports, "ATTEMPTS", 3)
        known = [used(ports, name) for name in ("a", "b", "c")]
        left = [*known, *known]
        patch.setattr(socket, "create_server", lambda address: create((address[0], address[1] or left.pop())))
        with pytest.raises(DeviceError, match=r"the last 3 that the system gave were used for others, as 3 were"):
            ports.listen("d")
        assert used(ports, "a") == known[0]
    monkeypatch.setattr(socket, "create_server", _refuse)
    with pytest.raises(DeviceError, match=r"no port of 127\.0\.0\.1 .*too many open files"):
        ports.listen("d")


def _refuse(address: object) -> socket.socket:
    raise OSError(24, "too many open files")


def test_many_threads_get_a_port_each() -> None:
    ports, found, barrier = RelayPorts(), list[socket.socket](), threading.Barrier(8)

    def work() -> None:
        for _ in range(40):
            listener = ports.listen("a")
            found.append(listener)
            barrier.wait(20)
            port = listener.getsockname()[1]
            barrier.wait(20)
            ports.give_back(port, "a")
            listener.close()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(8)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert len(found) == 8 * 40
    assert len(ports._workers) < 8 * 4
