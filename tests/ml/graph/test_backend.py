"""Backends and devices of the machine that the tests run on."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import tests
from ollama_engine.errors import ClosedError, ConfigError
from ollama_engine.ml import ops
from ollama_engine.ml.device.device import devices, ggml_version
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.ops.nn import supports_flash_attention
from tests.support.waiting import join


def in_child(code: str) -> str:
    root = Path(tests.__file__).parents[1]
    child = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert child.returncode == 0, child.stderr
    return child.stdout


def test_devices_of_this_machine() -> None:
    found = devices()
    assert [d.kind for d in found][-1] == "cpu"
    for library in {d.library for d in found}:
        mine = [d.index for d in found if d.library == library]
        assert mine == list(range(len(mine)))
    cpu = found[-1]
    assert (cpu.name, cpu.library, cpu.index) == ("CPU", "CPU", 0)
    assert cpu.memory_total > 0
    assert cpu.features, "the CPU says what it was built for"
    assert devices() == found


def test_ggml_has_a_version() -> None:
    assert ggml_version().count(".") == 2


def test_devices_are_logged_once_after_loading() -> None:
    code = """
import logging, threading
records = []
class Keep(logging.Handler):
    def emit(self, record):
        records.append(record)
logging.getLogger("ollama_engine").addHandler(Keep())
logging.getLogger("ollama_engine").setLevel(logging.DEBUG)
from ollama_engine.ml.device.device import devices
from ollama_engine.ml import Backend, BackendParams
assert not records, "importing loads no backend"
threads = [threading.Thread(target=devices) for _ in range(8)]
[t.start() for t in threads]; [t.join() for t in threads]
for _ in range(2):
    Backend(BackendParams(threads=1)).close()
shown = [r for r in records if r.getMessage().startswith("device ")]
assert [r.device.name for r in shown] == [d.name for d in devices()], shown
assert all("features: " in r.getMessage() and r.levelname == "INFO" for r in shown)
started = [r for r in records if r.getMessage().startswith("backend: ")]
assert [r.levelname for r in started] == ["DEBUG", "DEBUG"]
assert started[0].threads == 1 and started[0].devices[-1].kind == "cpu"
print("once")
"""
    assert in_child(code).endswith("once\n")


def test_importing_the_package_is_cheap() -> None:
    code = "import sys, ollama_engine; print([m for m in sys.modules if 'ollama_engine.' in m or m == 'numpy'])"
    assert in_child(code) == "['ollama_engine.lazy']\n"
    lazy = "import sys, ollama_engine.ml; print('ollama_engine.ml.graph.tensor' in sys.modules)"
    assert in_child(lazy) == "False\n"


@pytest.mark.parametrize("params", [None, {}, "threads=1", BackendParams])
def test_params_are_backend_params(params: object) -> None:
    with pytest.raises(TypeError, match="must be BackendParams"):
        Backend(params)  # type: ignore[arg-type]


@pytest.mark.parametrize("max_nodes", [15, 0, -1, 65537])
def test_max_nodes_is_bounded(max_nodes: int) -> None:
    with pytest.raises(ConfigError, match="max_nodes is 16 to 65536"):
        Backend(BackendParams(threads=1), max_nodes=max_nodes)


def test_threads_take_effect(caplog: pytest.LogCaptureFixture) -> None:
    for n in (1, 2):
        with caplog.at_level(logging.DEBUG), Backend(BackendParams(threads=n)) as backend:
            assert backend.threads in (1, n)
            assert repr(backend) == f"Backend(CPU; {backend.threads} threads)"
        assert f"{backend.threads} threads" in caplog.text


def test_options_for_gpus_are_checked_when_starting() -> None:
    if any(d.kind != "cpu" for d in devices()):
        pytest.skip("this machine has a GPU")
    for options in ({"main_gpu": 1}, {"tensor_split": (1.0, 1.0)}):
        with pytest.raises(ConfigError, match="no GPU"):
            Backend(BackendParams(**options))  # type: ignore[arg-type]


def test_two_backends_compute_at_once() -> None:
    answers: dict[int, float] = {}

    def work(number: int) -> None:
        with Backend(BackendParams(threads=1)) as backend, Context(backend) as ctx:
            x = ctx.input("f32", (64, 64))
            y = ops.mul_mat(x, x)
            ctx.forward(y)
            ctx.alloc()
            for _ in range(20):
                x.set(np.full((64, 64), number, dtype=np.float32))
                ctx.compute()
                answers[number] = float(y.numpy()[0, 0])

    threads = [threading.Thread(target=work, args=(n,)) for n in (1, 2, 3)]
    for thread in threads:
        thread.start()
    join(*threads)
    assert answers == {n: 64.0 * n * n for n in (1, 2, 3)}


def test_a_backend_closes_what_was_made_on_it() -> None:
    backend = Backend(BackendParams(threads=1))
    ctx, storage = Context(backend), Storage(backend, 1)
    backend.close()
    backend.close()
    assert backend.closed
    assert ctx.closed
    assert storage.closed
    assert repr(backend) == "Backend(closed)"
    for attempt in (lambda: Context(backend), lambda: Storage(backend, 1), backend.graph_bytes):
        with pytest.raises(ClosedError):
            attempt()
    with pytest.raises(ConfigError, match="initialised once"):
        backend.__init__(BackendParams())  # type: ignore[misc]


@pytest.mark.parametrize(("given", "then"), [(None, b"0"), ("1", b"1")])
def test_kernels_for_cuda_do_not_overlap_unless_asked(given: str | None, then: bytes) -> None:
    code = ("import ctypes; from ollama_engine.ml.device.device import avoid_overlap; avoid_overlap()\n"
            "c = ctypes.CDLL(None); c.getenv.restype = ctypes.c_char_p; print(c.getenv(b'GGML_CUDA_PDL'))")  # fmt: skip
    environment = {**os.environ, **({} if given is None else {"GGML_CUDA_PDL": given})}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert found.stdout.strip() == repr(then)


@pytest.mark.parametrize(
    ("dtype", "dim", "supported"),
    [("f16", 64, True), ("q8_0", 64, True), ("q8_0", 33, False), ("q4_K", 256, False), ("i32", 64, False)],
)
def test_flash_attention_is_asked_for(backend: Backend, dtype: str, dim: int, supported: bool) -> None:
    assert supports_flash_attention(backend.devices[-1], dim, dim, dtype) is supported
