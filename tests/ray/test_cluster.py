"""Addresses of Ray clusters: a wrong one is told at once, and what to do."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("ray.serve", reason="the extra `ray` is not installed")

from ollama_engine.errors import ConfigError
from ollama_engine.ray import cluster as room
from ollama_engine.ray.cluster import cluster

pytestmark = pytest.mark.slow  # Ray takes seconds to import


@pytest.fixture
def port() -> Iterator[int]:
    """A port at which nothing listens, nor will meanwhile."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def joined(address: str) -> None:
    with cluster(address):
        raise AssertionError("there is no cluster")


def started(**_: Any) -> None:
    raise AssertionError("Ray itself tries an address for minutes")


def test_where_nothing_listens_ray_is_not_asked(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.ray, "init", started)
    why = f"no Ray cluster answers at 127.0.0.1:{port}: Connection refused; .*ray start"
    with pytest.raises(ConfigError, match=why) as told:
        joined(f"127.0.0.1:{port}")
    assert told.value.option == "ray_address"


def test_rays_client_cannot_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chats would end with "internal error", one by one."""
    monkeypatch.setattr(room.ray, "init", started)
    with pytest.raises(ConfigError, match=r"no answer can be streamed; run this on a node of the cluster"):
        joined("ray://127.0.0.1:10001")


@pytest.mark.parametrize("address", ["", "nonsense", "10.0.0.1", "10.0.0.1:0", "10.0.0.1:70000", "http://10.0.0.1:1"])
def test_what_is_no_address(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.ray, "init", started)
    with pytest.raises(ConfigError, match=r"is auto or HOST:PORT, got"):
        joined(address)


def test_a_name_that_cannot_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room.ray, "init", started)
    with pytest.raises(ConfigError, match="no Ray cluster answers at"):
        joined(f"{'x' * 64}.y:6379")


def test_no_cluster_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance.")

    monkeypatch.setattr(room.ray, "init", none)
    with pytest.raises(ConfigError, match=r"no Ray cluster at 'auto': Could not find .*; .*start one"):
        joined("auto")


def test_what_does_not_answer_as_a_cluster_is_told_while_ray_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    told, messages = threading.Event(), []

    class Telling(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())
            told.set()

    def wait(**_: Any) -> None:
        assert told.wait(60)
        raise RuntimeError("it has given up")

    monkeypatch.setattr(room.ray, "init", wait)
    monkeypatch.setattr(room, "SILENT_SECONDS", 0.0)
    monkeypatch.setattr(room.log, "handlers", [Telling()])
    monkeypatch.setattr(room.log, "propagate", False)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(ConfigError, match="it has given up"):
            joined(address)
    assert [f"what listens at {address} does not answer as a Ray cluster does" in text for text in messages] == [True]
