"""`main_gpu` and `tensor_split` mean devices by number, named ones too: two workers hold what was asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("httpx", reason="the extra `server` is not installed")
pytest.importorskip("fastapi", reason="the extra `server` is not installed")
pytest.importorskip("uvicorn", reason="the extra `server` is not installed")

import httpx

from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ConfigError
from ollama_engine.server.app import create_app
from ollama_engine.server.settings import ServerSettings
from tests.server.running import running
from tests.support.suite import slow_except
from tests.support.tiny import write_tiny_llama
from tests.support.workers import RunningWorker, running_worker

N_LAYER = 4
GREEDY = SamplingParams(temperature=0, max_tokens=8, logit_bias={318: float("-inf"), 319: float("-inf")})
OPTIONS: dict[str, Any] = {"num_ctx": 128, "threads": 1, "kv_cache_type": "f32"}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of float32, with an output of its own."""
    return Path(write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", n_layer=N_LAYER, seed=3).path)


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningWorker, RunningWorker]]:
    folder = tmp_path_factory.mktemp("workers")
    with running_worker(folder) as first, running_worker(folder) as second:
        yield first, second


@pytest.fixture(scope="module")
def expected(path: Path) -> tuple[int, ...]:
    with Engine(path, gpu_layers=0, **OPTIONS) as engine:
        return engine.generate([1, 5, 7], GREEDY).tokens


@pytest.mark.parametrize(
    ("options", "layers", "output"),
    [
        ({"main_gpu": 0}, (0, 0, 0, 0), 0),
        ({"main_gpu": 1}, (1, 1, 1, 1), 1),
        ({"tensor_split": (1, 1)}, (0, 0, 0, 1), 1),
        ({"tensor_split": (3, 1)}, (0, 0, 0, 0), 1),  # the output counts as a layer
        ({"tensor_split": (3, 1), "main_gpu": 0}, (0, 0, 0, 1), 0),
        ({"tensor_split": (3, 1), "main_gpu": 1}, (0, 0, 0, 1), 1),
        ({"tensor_split": (1, 0), "main_gpu": 1}, (0, 0, 0, 0), 1),
        ({"tensor_split": (1, 1), "main_gpu": 0, "gpu_layers": 3}, (2, 2, 0, 1), 0),
        ({"main_gpu": 1, "gpu_layers": 1}, (2, 2, 2, 2), 1),
    ],
    ids=str,
)
def test_layers_and_output_are_where_they_were_asked_for(
    path: Path, workers: tuple[RunningWorker, RunningWorker], expected: tuple[int, ...], options: dict[str, Any],
    layers: tuple[int, ...], output: int,
) -> None:  # fmt: skip
    """By the plan, by the bytes that each worker holds, and with the CPU's answer."""
    names = [*(worker.address for worker in workers), "CPU"]
    with Engine(path, devices=names[:2], **options, **OPTIONS) as engine:
        memory, weights = engine.memory, engine._loaded.weights
        plan = memory.placement
        assert plan is not None
        assert (plan.layers, plan.output) == (layers, output)
        there = {device.device: device for device in memory.devices}
        layer = next(nbytes for name, nbytes in memory.layers.items() if name == "blk.0")
        for number, name in enumerate(names[:2]):
            n = layers.count(number) * layer + (memory.layers["output"] if output == number else 0)
            assert (there[name].weights if name in there else 0) == n
        where = {tensor: engine._loaded.backend.devices[number].name for tensor, number in weights.plan.devices.items()}
        assert {where[tensor] for tensor in where if tensor.startswith("output")} == {names[output]}
        assert "output_norm.weight" in where
        assert engine.generate([1, 5, 7], GREEDY).tokens == expected


def test_a_number_of_no_device(path: Path, workers: tuple[RunningWorker, RunningWorker]) -> None:
    names = [worker.address for worker in workers]
    with pytest.raises(ConfigError, match=r"main_gpu 2 does not exist; devices: rpc://\S+, rpc://"):
        Engine(path, devices=names, main_gpu=2, **OPTIONS)
    with pytest.raises(ConfigError, match="tensor_split has 3 shares for 2 devices"):
        Engine(path, devices=names, tensor_split=(1, 1, 1), **OPTIONS)


@contextmanager
def client_of(path: Path, folder: Path, names: tuple[str, ...], isolation: str) -> Iterator[httpx.Client]:
    app = create_app(
        ServerSettings(devices=names, tensor_split=(1, 1), models=folder, isolation=isolation, files=(("tiny", path),))
    )
    with running(app) as address, httpx.Client(base_url=address, timeout=50, trust_env=False) as client:
        yield client


@pytest.mark.parametrize("isolation", slow_except(["none", "process"], "none"))
def test_through_the_server(
    isolation: str, path: Path, workers: tuple[RunningWorker, RunningWorker], tmp_path: Path
) -> None:
    """The layers are shared out by its setting, and a request's `main_gpu` moves the output."""
    names = tuple(worker.address for worker in workers)
    with client_of(path, tmp_path, names, isolation) as client:
        held = []
        for main_gpu in (0, 1):
            options = {"num_ctx": 128, "num_predict": 1, "num_thread": 1, "main_gpu": main_gpu}
            asked = {"model": "tiny", "prompt": "a", "raw": True, "stream": False, "options": options}
            answer = client.post("/api/generate", json=asked)
            assert answer.status_code == 200, answer.text
            (row,) = client.get("/api/ps").json()["models"]
            held.append([row["devices"][name] for name in names])
        (first, second), (third, fourth) = held
        assert first > second
        assert third < fourth
