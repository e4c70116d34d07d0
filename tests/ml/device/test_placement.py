"""Which devices and how many threads: pure decisions, on machines that the tests make up."""

from __future__ import annotations

import logging
import threading
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine.config import EngineConfig
from ollama_engine.errors import ConfigError, NoMemoryError
from ollama_engine.ml.device import placement
from ollama_engine.ml.device.device_info import Device, DeviceKind, number_by_library
from ollama_engine.ml.device.placement import BackendParams, choose_devices, choose_threads
from ollama_engine.ml.threads import threads
from ollama_engine.ml.threads.threads import check_threads


def device(name: str, kind: DeviceKind, library: str | None = None) -> Device:
    return Device(name=name, kind=kind, library=library or name.rstrip("0123456789"), index=0, description=name,
                  memory_total=1 << 34, memory_free=1 << 33)  # fmt: skip


CPU = device("CPU", "cpu")
ONE = device("CUDA0", "gpu")
TWO = device("CUDA1", "gpu")
BUILT_IN = device("Vulkan0", "igpu")
MACHINES = {"none": (CPU,), "one": (ONE, CPU), "two": (ONE, TWO, CPU), "igpu": (BUILT_IN, CPU)}


def test_indices_count_within_a_library() -> None:
    found = [ONE, device("Vulkan0", "gpu"), TWO, device("Vulkan1", "gpu"), CPU]
    assert [(d.name, d.index) for d in number_by_library(found)] == [
        ("CUDA0", 0), ("Vulkan0", 0), ("CUDA1", 1), ("Vulkan1", 1), ("CPU", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": 0}, "threads is a whole number from 1 to 512, got 0"),
        ({"threads": 513}, "threads is a whole number from 1 to 512"),
        ({"threads": 2.5}, "threads is a whole number"),
        ({"threads": True}, "threads is a whole number"),
        ({"threads": "4"}, "threads is a whole number"),
        ({"gpu_layers": -1}, r"gpu_layers is a whole number from 0 to \d+, got -1; leave it out for as many as fit"),
        ({"gpu_layers": "all"}, "gpu_layers is a whole number"),
        ({"main_gpu": -1}, "main_gpu is a whole number from 0"),
        ({"main_gpu": "0"}, "main_gpu is a whole number"),
        ({"cpu_experts": -1}, "cpu_experts is a whole number from 0"),
        ({"flash_attention": 1}, "flash_attention is one of auto, on, off"),
        ({"flash_attention": "yes"}, "flash_attention is"),
        ({"flash_attention": None}, "flash_attention is"),
        ({"mmap": "no"}, "mmap is True or False"),
        ({"mmap": None}, "mmap is True or False"),
        ({"tensor_split": ()}, "tensor_split is a share"),
        ({"tensor_split": (0, 0)}, "tensor_split is a share"),
        ({"tensor_split": (1, -1)}, "tensor_split is a share"),
        ({"tensor_split": (float("nan"),)}, "tensor_split is a share"),
        ({"tensor_split": (float("inf"), 1)}, "tensor_split is a share"),
        ({"tensor_split": "3,1"}, "tensor_split is a share"),
        ({"tensor_split": ("3", "1")}, "tensor_split is a share"),
        ({"tensor_split": 1}, "tensor_split is a share"),
    ],
    ids=str,
)
def test_options_out_of_range(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BackendParams(**options)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=message):
        EngineConfig(**options)  # type: ignore[arg-type]


def test_every_option_of_a_backend_is_one_of_an_engine() -> None:
    """So that one place states what it may be."""
    defaults = {option.name: option.default for option in fields(EngineConfig)}
    assert {option.name: option.default for option in fields(BackendParams)}.items() <= defaults.items()


def test_options_are_put_into_their_plain_form() -> None:
    given: dict[str, Any] = {
        "threads": np.int64(2), "main_gpu": np.uint8(1), "flash_attention": True, "tensor_split": iter([3, 1]),
    }  # fmt: skip
    params = BackendParams(**given)
    assert params == BackendParams(threads=2, main_gpu=1, flash_attention="on", tensor_split=(3.0, 1.0))
    assert (type(params.threads), type(params.main_gpu)) == (int, int)


@pytest.mark.parametrize(
    ("machine", "options", "chosen"),
    [
        ("none", {}, ["CPU"]),
        ("none", {"gpu_layers": 0}, ["CPU"]),
        ("one", {}, ["CUDA0", "CPU"]),
        ("one", {"gpu_layers": 0}, ["CPU"]),
        ("one", {"gpu_layers": 3}, ["CUDA0", "CPU"]),
        ("two", {}, ["CUDA0", "CUDA1", "CPU"]),
        ("two", {"main_gpu": 1}, ["CUDA0", "CUDA1", "CPU"]),
        ("two", {"tensor_split": (3, 1)}, ["CUDA0", "CUDA1", "CPU"]),
        ("two", {"tensor_split": (1,)}, ["CUDA0", "CUDA1", "CPU"]),
        ("igpu", {}, ["Vulkan0", "CPU"]),
    ],
    ids=str,
)
def test_devices_are_chosen(machine: str, options: dict[str, object], chosen: list[str]) -> None:
    params = BackendParams(**options)  # type: ignore[arg-type]
    assert [d.name for d in choose_devices(MACHINES[machine], params)] == chosen


@pytest.mark.parametrize(
    ("machine", "options", "message"),
    [
        ("none", {"main_gpu": 1}, "main_gpu is 1, but this machine or build has no GPU"),
        ("none", {"tensor_split": (1, 1)}, "tensor_split is given, but"),
        ("one", {"main_gpu": 1}, "main_gpu 1 does not exist; GPUs: CUDA0"),
        ("one", {"tensor_split": (1, 1)}, "2 shares for 1 GPUs"),
        ("one", {"devices": ("CPU",)}, "devices names the CPU, which .*; set gpu_layers to 0 to use nothing else"),
    ],
    ids=str,
)
def test_devices_that_do_not_exist(machine: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        choose_devices(MACHINES[machine], BackendParams(**options))  # type: ignore[arg-type]


def test_a_build_without_cpu() -> None:
    with pytest.raises(ConfigError, match="no CPU backend"):
        choose_devices([ONE], BackendParams())


def test_gpu_layers_without_gpu_are_mentioned(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert choose_devices([CPU], BackendParams(gpu_layers=9)) == (CPU,)
    assert "gpu_layers=9 has no effect" in caplog.text


def test_one_thread_for_each_core(tmp_path: Path) -> None:
    for cpu, siblings in enumerate(("0,4", "1,5", "2", "3", "0,4", "1,5")):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(siblings + "\n", encoding="ascii")
    assert len(placement._physical({0, 1, 2, 3, 4, 5}, tmp_path)) == 4
    assert len(placement._physical({0, 4}, tmp_path)) == 1
    assert len(placement._physical({7, 8}, tmp_path)) == 2  # unknown: each on its own


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("max 100000", None), ("150000 100000", 2), ("50000 100000", 1), ("400000 100000", 4), ("", None)],
)
def test_control_groups_bound_the_threads(tmp_path: Path, text: str, cpus: int | None) -> None:
    (tmp_path / "cpu.max").write_text(text, encoding="ascii")
    assert placement._cgroup_cpus(tmp_path / "cpu.max") == cpus
    assert placement._cgroup_cpus(tmp_path / "none") is None


def test_threads_beyond_the_cpus_are_cut(caplog: pytest.LogCaptureFixture) -> None:
    assert choose_threads(1) == 1
    assert choose_threads(None) >= 1
    with caplog.at_level(logging.WARNING):
        assert choose_threads(512) < 512
    assert "threads=512 is more than" in caplog.text


@pytest.mark.parametrize("n", [1, 2, 8])
def test_threads_are_granted(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as were asked for, at once, and none is left behind."""
    made: list[threading.Thread] = []
    alive: list[int] = []

    class Watched(threading.Thread):
        def start(self) -> None:
            super().start()
            made.append(self)
            alive.append(sum(thread.is_alive() for thread in made))

    monkeypatch.setattr(threads.threading, "Thread", Watched)
    check_threads(n)
    assert alive == [*range(1, n)]
    assert not any(thread.is_alive() for thread in made)


@pytest.mark.parametrize("error", [RuntimeError("can't start new thread"), MemoryError()])
def test_threads_that_are_not_granted(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[threading.Thread] = []

    class Third(threading.Thread):
        def start(self) -> None:
            if len(made) == 2:
                raise error
            made.append(self)
            super().start()

    monkeypatch.setattr(threads.threading, "Thread", Third)
    with pytest.raises(NoMemoryError, match="the system grants 3 threads at once, not 8"):
        check_threads(8)
    assert not any(thread.is_alive() for thread in made)
