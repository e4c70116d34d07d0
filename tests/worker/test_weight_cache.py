"""`ollama-engine worker --cache`: weights are sent once, and what is not whole is nobody's weights."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.workers.workers import weights_hash
from ollama_engine.worker.weight_cache import WeightCache
from tests.support.waiting import eventually
from tests.support.workers import worker_program

ROWS, COLUMNS = 4096, 1024
LARGE = ROWS * COLUMNS * 4
"""More than the 10 MiB from which ggml keeps weights."""


def files(folder: Path) -> list[Path]:
    return [file for file in folder.iterdir() if not file.name.startswith(".")]


def send(address: str, values: np.ndarray) -> int:
    """Put weights on a worker; how many bytes that took."""
    with Backend(BackendParams(threads=1, devices=(address,))) as backend, Storage(backend, 1) as storage:
        weight = storage.add("w", "f32", (COLUMNS, ROWS))
        storage.allocate(0)
        storage.mark_weights()
        weight.set(values)
        np.testing.assert_array_equal(weight.numpy(), values)
        return backend.workers[0].counts()["bytes_sent"]


def test_weights_are_sent_once(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((ROWS, COLUMNS), dtype=np.float32)
    folder = tmp_path / "kept"
    with worker_program(tmp_path, "--cache", str(folder)) as worker:
        assert send(worker.address, values) > LARGE
        eventually(lambda: files(folder))
        (kept,) = files(folder)
        assert kept.read_bytes() == values.tobytes()
        assert send(worker.address, values) < LARGE // 100
        assert send(worker.address, values + 1) > LARGE
    assert len(files(folder)) == 2
    assert not list(folder.glob(".*"))
    with worker_program(tmp_path, "--cache", str(folder)) as worker:
        assert send(worker.address, values + 1) < LARGE // 100


@pytest.mark.parametrize(("text", "number"), [(b"a", 0xAF63DC4C8601EC8C), (b"foobar", 0x85944171F73967E8)])
def test_the_hash_is_fnv_1a(text: bytes, number: int) -> None:
    """Examples of its authors' test suite (isthe.com/chongo/tech/comp/fnv)."""
    assert weights_hash(text) == number


def test_a_file_that_is_deleted_meanwhile_is_written_anew_beside_the_cache(tmp_path: Path) -> None:
    """Through a link that leads nowhere half a file would come into the cache, under the name of a whole one."""
    whole, name = b"weights", f"{weights_hash(b'weights'):016x}"
    cache = WeightCache(tmp_path)
    (tmp_path / name).write_bytes(whole)
    view = cache.view()
    (tmp_path / name).unlink()
    view.refresh()
    (view.path / name).write_bytes(whole[:3])
    assert files(tmp_path) == []
    (view.path / name).write_bytes(whole)
    view.close()
    assert [file.read_bytes() for file in files(tmp_path)] == [whole]


def test_what_is_not_whole_is_not_kept(tmp_path: Path) -> None:
    cache = WeightCache(tmp_path)
    first, second = cache.view(), cache.view()
    whole, name = b"weights", f"{weights_hash(b'weights'):016x}"
    (first.path / name).write_bytes(whole)
    for wrong in (b"weigh", b"", b"WEIGHTS"):
        (second.path / name).write_bytes(wrong)
        second.keep()
        assert files(tmp_path) == []
    first.keep()
    assert files(tmp_path) == [tmp_path / name]
    second.refresh()
    assert (second.path / name).read_bytes() == whole
    for view in (first, second):
        view.close()
        view.close()
    assert list(tmp_path.iterdir()) == [tmp_path / name]


def test_folders_of_workers_that_are_gone_are_removed(tmp_path: Path) -> None:
    imports = "import os, sys; from ollama_engine.worker.weight_cache import WeightCache"
    code = f"{imports}; view = WeightCache(sys.argv[1]).view(); os._exit(0)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, timeout=120)
    assert len(list(tmp_path.iterdir())) == 1
    view = WeightCache(tmp_path).view()
    WeightCache(tmp_path)  # another worker's start leaves this one's alone
    assert list(tmp_path.iterdir()) == [view.path]
    view.close()
