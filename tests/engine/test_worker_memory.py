"""What reports say that lies on a worker is what the worker has given."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams, demo
from tests.support.suite import slow_except
from tests.support.waiting import eventually
from tests.support.worker_ledger import WorkerLedger
from tests.support.workers import running_worker

OPTIONS: dict[str, Any] = {"num_ctx": 512, "threads": 1}
FEW = SamplingParams(temperature=0, max_tokens=3)
WAIT = 50.0


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerLedger]:
    with running_worker(tmp_path_factory.mktemp("worker")) as worker, WorkerLedger(worker.address) as kept:
        yield kept


@pytest.mark.parametrize("model", ["demo", "vision"])
@pytest.mark.parametrize(
    "options",
    slow_except(
        [{}, {"kv_cache_type": "q8_0", "parallel": 2}, {"gpu_layers": 2}, {"mmap": False, "batch_size": 32}], {}
    ),
    ids=str,
)
def test_reports_are_what_the_worker_has_given(ledger: WorkerLedger, model: str, options: dict[str, Any]) -> None:
    path = demo.path() if model == "demo" else demo.vision_path()
    options = {**OPTIONS, **options, "devices": [ledger.address]}
    planned = Engine.plan_memory(path, **options).devices[0]
    ledger.most = 0
    with Engine(path, **options) as engine:
        (taken,) = (device for device in engine.memory.devices if device.device == ledger.address)
        assert taken.allocated == ledger.total == ledger.most
        assert taken.mapped == taken.repacked == taken.work == 0
        assert min(taken.weights, taken.cache, taken.graph) > 0
        assert (planned.device, planned.weights, planned.cache) == (ledger.address, taken.weights, taken.cache)
        assert planned.graph >= taken.graph
        told = engine.metrics.device_bytes
        assert sum(told[ledger.address].values()) == ledger.total
        assert sum(sum(kinds.values()) for kinds in told.values()) == engine.memory.total
        engine.generate(["One day", "a fox and a bear " * 20, "Two"], FEW)
        engine.embed("a fox")
        assert ledger.total == ledger.most == taken.allocated  # all memory is taken at start


def test_memory_and_metrics_do_not_wait_for_a_step(tmp_path: Path) -> None:
    with running_worker(tmp_path) as worker, Engine(demo.path(), **OPTIONS, devices=[worker.address]) as engine:
        before = engine.memory.devices, engine.metrics.device_bytes
        with ThreadPoolExecutor(1) as pool, worker.stopped():  # the step that is computed cannot end
            request = engine.submit("One day", FEW)
            eventually(lambda: engine.metrics.running == 1)
            for _ in range(20):
                asked = pool.submit(lambda: (engine.memory.devices, engine.metrics.device_bytes))
                assert asked.result(WAIT) == before
                time.sleep(0.01)
            assert not request.done
        assert request.result(WAIT).usage.completion_tokens > 0
