"""The server with models on a worker: what it reports, and what becomes of it when the worker is killed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.server.running import running
from tests.support.suite import slow_except
from tests.support.waiting import eventually
from tests.support.workers import RunningWorker, worker_program

OPTIONS = {"num_ctx": 512, "num_thread": 1, "temperature": 0}
ASKED: dict[str, Any] = {"model": "demo", "prompt": "One day", "options": {**OPTIONS, "num_predict": 4}}
ENDLESS = {**ASKED, "options": {**OPTIONS, "num_predict": -1}, "format": {"type": "string", "minLength": 100_000}}
PATIENCE = 50


@contextmanager
def client_of(worker: RunningWorker, folder: Path, **settings: Any) -> Iterator[httpx.Client]:
    """A client of a server whose models use a worker."""
    app = create_app(ServerSettings(devices=(worker.address,), models=folder / "models", **settings))
    with running(app) as address, httpx.Client(base_url=address, timeout=PATIENCE, trust_env=False) as client:
        yield client


def port_of(worker: RunningWorker) -> int:
    return int(worker.address.rpartition(":")[2])


def answer(client: httpx.Client, asked: dict[str, Any] = ASKED) -> httpx.Response:
    return client.post("/api/generate", json={**asked, "stream": False})


def loaded(client: httpx.Client) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = client.get("/api/ps").json()["models"]
    return found


@pytest.mark.parametrize("isolation", slow_except(["none", "process"], "none"))
def test_a_worker_that_is_killed_and_comes_back(isolation: str, tmp_path: Path) -> None:
    with worker_program(tmp_path) as worker, client_of(worker, tmp_path, isolation=isolation) as client:
        text = answer(client).json()["response"]
        (row,) = loaded(client)
        assert row["devices"] == {worker.address: row["size_vram"], "CPU": row["size"] - row["size_vram"]}
        assert 0 < row["size_vram"] < row["size"]
        told = re.findall(rf'^ollama_engine_device_bytes{{device="{worker.address}",kind="(\w+)".*}} (\S+)$',
                          client.get("/metrics").text, re.MULTILINE)  # fmt: skip
        taken = {kind: float(nbytes) for kind, nbytes in told}
        assert set(taken) == {"weights", "cache", "graph"}
        assert sum(taken.values()) == row["size_vram"]
        with client.stream("POST", "/api/generate", json=ENDLESS) as response:
            lines = response.iter_lines()
            for _ in range(3):
                next(lines)
            worker.kill()
            last = json.loads(list(lines)[-1])
        assert re.search(rf"the worker at {worker.address} is gone.*load the model again", last["error"])
        away = answer(client)
        assert away.status_code == 503
        assert f"no worker answers at {worker.address}" in away.json()["error"]
        with worker_program(tmp_path, port=port_of(worker)):
            assert answer(client).json()["response"] == text


@pytest.mark.parametrize("isolation", slow_except(["none", "process"], "none"))
def test_a_worker_that_is_killed_while_nobody_asks(isolation: str, tmp_path: Path) -> None:
    """The model is unloaded without being asked for, so that a request does not have to fail first."""
    with worker_program(tmp_path) as worker, client_of(worker, tmp_path, isolation=isolation) as client:
        text = answer(client).json()["response"]
        worker.kill()
        eventually(lambda: not loaded(client))
        with worker_program(tmp_path, port=port_of(worker)):
            assert answer(client).json()["response"] == text


def test_several_models_share_a_worker(tmp_path: Path) -> None:
    with worker_program(tmp_path) as worker, client_of(worker, tmp_path) as client:
        for model in ("demo", "demo-vision", "demo"):
            assert answer(client, {**ASKED, "model": model}).status_code == 200
        assert {row["name"]: row["size_vram"] > 0 for row in loaded(client)} == {
            "demo:latest": True, "demo-vision:latest": True
        }  # fmt: skip
        assert client.post("/api/generate", json={"model": "demo", "keep_alive": 0}).status_code == 200
        eventually(lambda: len(loaded(client)) == 1)
        assert answer(client, {**ASKED, "model": "demo-vision"}).status_code == 200
