"""`devices`: the table and the JSON."""

from __future__ import annotations

import json

import pytest

from ollama_engine.engine import Engine
from ollama_engine.ml.device.device_info import Device

GPU = Device("CUDA0", "gpu", "CUDA", 0, "Fast One", 8 << 30, 7 << 30, "0000:01:00.0", {"ARCHS": "900", "VMM": "1"})
UNKNOWN = Device("X", "accel", "X", 0, "", 0, 0)


def test_this_machine(cli) -> None:
    result = cli("devices", "--json")
    assert (result.code, result.err) == (0, "")
    devices = json.loads(result.out)
    assert [d["name"] for d in devices] == [d.name for d in Engine.devices()]
    cpu = devices[-1]
    assert set(cpu) == {
        "name", "kind", "library", "index", "description", "memory_total", "memory_free", "id", "features",
    }  # fmt: skip
    assert cpu["kind"] == "cpu"
    assert cpu["memory_total"] > 0


def test_workers_only_are_asked(cli) -> None:
    told = cli("devices", "--device", "CUDA0")
    assert told.code == 2
    assert told.err == (
        "error: --device names a worker as rpc://HOST:PORT, or rpc://HOST:PORT/N for one device; got 'CUDA0'\n"
    )


def test_the_table(cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "devices", staticmethod(lambda: (GPU, UNKNOWN)))
    assert cli("devices").out.splitlines() == [
        "name   kind   library   memory     free  description",
        "CUDA0  gpu    CUDA 0   8.0 GiB  7.0 GiB  Fast One",
        "X      accel  X 0            -        -",
        "",
        "CUDA0 features: ARCHS=900 VMM",
        "",
        "X features: none",
    ]
