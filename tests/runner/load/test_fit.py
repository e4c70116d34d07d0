"""Models land on devices as the plan says. The devices are workers on loopback, whose free memory the tests make up."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from ollama_engine import Engine, SamplingParams
from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, NoMemoryError
from ollama_engine.ml.device.device_info import Device
from ollama_engine.ml.device.placement_plan import PlacementPlan, Room
from ollama_engine.runner.execute.executor import Executor
from ollama_engine.runner.load import fit, planning
from tests.models.variants import CPU, VARIANTS, prompt
from tests.support.suite import scaled
from tests.support.workers import RunningWorker, running_worker

GREEDY = SamplingParams(temperature=0, max_tokens=6)
OPTIONS: dict[str, Any] = {**CPU, "num_ctx": 64, "parallel": 2, "batch_size": 16, "gpu_layers": None}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningWorker, ...]]:
    folder = tmp_path_factory.mktemp("workers")
    with ExitStack() as stack:
        yield tuple(stack.enter_context(running_worker(folder)) for _ in range(3))


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> str:
    return next(v for v in VARIANTS if str(v) == "llama-experts").file(tmp_path_factory.mktemp("models"))


def with_memory(monkeypatch: pytest.MonkeyPatch, workers: tuple[RunningWorker, ...], free: list[int]) -> None:
    """Workers with this much free memory, and none in reserve."""
    known = {worker.address: size for worker, size in zip(workers, free, strict=True)}

    def room(gpu: Device, tight: int) -> Room:
        return Room(gpu.name, known[gpu.name] * (4 - tight) // 4)

    monkeypatch.setattr(fit, "_room", room)


def check_landing(engine: Engine, plan: PlacementPlan) -> None:
    """Each device has what is planned there: weights and cache exactly, graphs at most."""
    taken = {device.device: device for device in engine.memory.devices}
    sent = {worker.devices[0].name: worker.counts()["bytes_sent"] for worker in engine._loaded.backend.workers}
    assert list(taken) == [*(plan.devices[gpu].name for gpu in plan.order), plan.devices[plan.cpu].name]
    for device in plan.devices[:-1]:
        if device.taken:
            found = taken[device.name]
            assert (found.weights, found.cache) == (device.weights, device.cache)
            assert found.graph <= device.graph
            assert device.free is not None
            assert found.allocated <= device.free
            assert device.weights <= sent[device.name] <= device.weights + device.cache + 200_000
        else:
            assert sent[device.name] < 1000
    host = taken[plan.devices[plan.cpu].name]
    assert host.weights + host.mapped == plan.devices[plan.cpu].weights


@pytest.mark.parametrize("seed", range(scaled(12, quick=2)))
def test_models_land_as_planned(
    seed: int, mixture: str, workers: tuple[RunningWorker, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = random.Random(seed)
    free = [numbers.randrange(0, 3_000_000) for _ in workers]
    with_memory(monkeypatch, workers, free)
    devices = [worker.address for worker in workers]
    planned = Engine.plan_memory(mixture, devices=devices, **OPTIONS)
    with Engine(mixture, **{**OPTIONS, "gpu_layers": 0}) as here:
        tokens = here.generate(prompt(20), GREEDY).tokens
    with Engine(mixture, devices=devices, **OPTIONS) as engine:
        plan = engine.memory.placement
        assert plan is not None
        assert planned.placement == plan
        assert [device.free for device in plan.devices] == [*free, None]
        assert not plan.overfull
        check_landing(engine, plan)
        assert engine.generate(prompt(20), GREEDY).tokens == tokens


def test_experts_stay_on_the_cpu(
    mixture: str, workers: tuple[RunningWorker, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, workers, [1 << 30] * 3)
    tokens = set()
    weights = []
    for cpu_experts in (0, 1, None):
        options = {**OPTIONS, "cpu_experts": cpu_experts}
        with Engine(mixture, devices=[workers[0].address], **options) as engine:
            plan = engine.memory.placement
            assert plan is not None
            check_landing(engine, plan)
            assert plan.gpu_layers == len(plan.layers) + 1
            weights.append(engine.memory.devices[0].weights)
            assert plan.cpu_experts == (cpu_experts or 0)
            tokens.add(tuple(engine.generate(prompt(20), GREEDY).tokens))
            tensor = engine._loaded.weights.plan.devices
            assert tensor["blk.0.ffn_up_exps.weight"] == (1 if cpu_experts else 0)
            assert tensor["blk.0.attn_q.weight"] == tensor["blk.1.ffn_up_exps.weight"] == 0
    assert len(tokens) == 1
    assert weights[0] == weights[2] > weights[1]


def test_what_does_not_fit_is_refused(
    mixture: str, workers: tuple[RunningWorker, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    with_memory(monkeypatch, workers, [300_000, 0, 0])
    options = {**OPTIONS, "gpu_layers": 99, "devices": [workers[0].address]}
    planned = Engine.plan_memory(mixture, **options).placement
    assert planned is not None
    assert planned.overfull
    with pytest.raises(NoMemoryError, match=r"the output layer on rpc://.* of which 293\.0 KiB are free") as e:
        Engine(mixture, **options)
    assert str(e.value).startswith(f"{mixture} does not fit: ")
    assert "leave out gpu_layers, to use what fits" in str(e.value)


def test_where_a_device_grants_less_than_it_said_less_goes_there(
    mixture: str, workers: tuple[RunningWorker, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    planned = Engine.plan_memory(mixture, devices=[workers[0].address], **OPTIONS).placement
    assert planned is not None
    with_memory(monkeypatch, workers, [planned.devices[0].taken] * 3)
    reserve, failures = Executor.reserve, [NoMemoryError("no memory for a graph of 9 operations")]

    def failing(self: Executor, n_decoding: int = 1) -> None:
        if failures:
            raise failures.pop()
        reserve(self, n_decoding)

    monkeypatch.setattr(Executor, "reserve", failing)
    with (
        caplog.at_level(logging.WARNING),
        Engine(mixture, devices=[workers[0].address], **OPTIONS) as engine,
    ):
        plan = engine.memory.placement
        assert plan is not None
        assert plan.devices[0].taken <= planned.devices[0].taken * 3 // 4
        check_landing(engine, plan)
        assert engine.generate(prompt(20), GREEDY).tokens
    assert "less of it goes on GPUs" in caplog.text
    # Layers that the caller demands are not given up.
    failures.append(NoMemoryError("no memory for a graph of 9 operations"))
    with pytest.raises(NoMemoryError, match="9 operations"):
        Engine(mixture, devices=[workers[0].address], **{**OPTIONS, "gpu_layers": 1})


def test_plans_for_another_machine(mixture: str) -> None:
    plan = Engine.plan_memory(mixture, gpu_memory=[64 << 20], **OPTIONS).placement
    assert plan is not None
    assert plan.gpu_layers == len(plan.layers) + 1
    assert [device.name for device in plan.devices] == ["GPU0", "CPU"]
    with pytest.raises(ConfigError, match="main_gpu 1 does not exist; GPUs: GPU0"):
        Engine.plan_memory(mixture, gpu_memory=[64 << 20], **{**OPTIONS, "main_gpu": 1})


def test_memory_that_will_be_free_is_planned_with(
    mixture: str, workers: tuple[RunningWorker, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Device] = []

    def room(gpu: Device, tight: int) -> Room:
        seen.append(gpu)
        return Room(gpu.name, max(0, gpu.memory_free - (1 << 60)))

    monkeypatch.setattr(fit, "_room", room)
    options = {**OPTIONS, "devices": [workers[0].address]}
    now = planning.plan_memory(mixture, EngineConfig(**options)).placement
    later = planning.plan_memory(
        mixture, EngineConfig(**options), more_memory={workers[0].address: 1 << 60, "CPU": 5}
    ).placement
    assert now is not None
    assert later is not None
    assert (now.gpu_layers, later.gpu_layers) == (0, len(later.layers) + 1)
    assert len(seen) == 2


@pytest.mark.parametrize("sizes", ["8GiB", ["8GiB"], [], [-1], [0], [True], 5])
def test_memory_that_is_no_size(mixture: str, sizes: Any) -> None:
    with pytest.raises(ConfigError, match="gpu_memory is the free memory of each GPU, in bytes above 0, got"):
        Engine.plan_memory(mixture, gpu_memory=sizes, **OPTIONS)


def test_memory_of_other_gpus_with_devices(mixture: str) -> None:
    with pytest.raises(ConfigError, match="gpu_memory is for GPUs that are not here, and devices names some that are"):
        Engine.plan_memory(mixture, gpu_memory=[64 << 20], devices=["rpc://127.0.0.1:1"], **OPTIONS)
