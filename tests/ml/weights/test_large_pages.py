"""Mapped weights whose file a program has just written, in small pieces, and so in small pages."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, demo
from ollama_engine.errors import ShapeError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.model_file import ModelFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.weights import large_pages, weights
from ollama_engine.ml.weights.large_pages import bytes_in_large_pages, read_into_large_pages

LARGE = 2 << 20
SIZE = 48 * LARGE + 12_288
NUMBERS = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)
LONG = 60.0
"""Seconds: more than any disk needs."""


@pytest.fixture(autouse=True)
def any_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "LEAST_SPEED", 0.0)


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=2, devices=()), max_nodes=64) as made:
        yield made


@pytest.fixture
def file(tmp_path: Path) -> Iterator[ModelFile]:
    path = tmp_path / "weights"
    with open(path, "wb", buffering=0) as out:
        for at in range(0, SIZE, 1 << 16):
            out.write(NUMBERS[at : at + (1 << 16)])
    made = ModelFile(str(path))
    yield made
    made.close()


@pytest.fixture
def storage(backend: Backend, file: ModelFile) -> Iterator[Storage]:
    """The file, mapped and paged in."""
    with Storage(backend, 1) as made:
        made.add("w", "f32", (SIZE // 4,))
        made.map(file.mapping(), {"w": 0})
        if not made.populate(0, SIZE):
            pytest.skip("this system pages nothing in")
        if bytes_in_large_pages(made) < 0:
            pytest.skip("this system does not tell where pages are large: Linux does since 6.7")
        yield made


def has_large_pages(folder: Path) -> bool:
    """Whether Linux has large pages for files there: on ext4 since 6.16."""
    mounts = [line.split()[1:3] for line in Path("/proc/mounts").read_text().splitlines()]
    of = [mount for mount in mounts if folder.resolve().is_relative_to(mount[0])]
    system = max(of, key=lambda mount: len(mount[0]))[1]
    version = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])
    enabled = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return system == "ext4" and version >= (6, 16) and enabled.exists() and "[never]" not in enabled.read_text()


def same_bytes(storage: Storage) -> bool:
    return bool(np.array_equal(storage["w"].numpy().view(np.uint8).reshape(-1), NUMBERS))


def test_what_lies_in_small_pages_is_read_into_large_ones(storage: Storage, file: ModelFile, tmp_path: Path) -> None:
    if not has_large_pages(tmp_path):
        pytest.skip("this system has no large pages for files here: Linux has since 6.16, on ext4")
    before = bytes_in_large_pages(storage)
    assert before < SIZE // 2, "the file was written in small pieces"
    gained = read_into_large_pages(storage, file.fileno(), LONG)
    assert before + gained == bytes_in_large_pages(storage) >= 0.9 * SIZE
    assert same_bytes(storage)
    assert read_into_large_pages(storage, file.fileno(), LONG) <= SIZE - before - gained


def test_a_slow_disk_reads_one_batch(storage: Storage, file: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_pages, "LEAST_SPEED", 1e15)
    assert 0 <= read_into_large_pages(storage, file.fileno(), LONG) <= 16 * LARGE
    assert same_bytes(storage)


def test_without_time_nothing_is_read(storage: Storage, file: ModelFile) -> None:
    assert read_into_large_pages(storage, file.fileno(), 0.0) == 0


def test_pages_that_another_mapping_holds_stay(storage: Storage, file: ModelFile) -> None:
    """As another process's engine holds them: nothing is gained, and it reads what it read."""
    with ExitStack() as stack:
        other = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        assert other[:: mmap.PAGESIZE] == NUMBERS[:: mmap.PAGESIZE].tobytes()
        assert read_into_large_pages(storage, file.fileno(), LONG) <= 16 * LARGE
        assert other[:] == NUMBERS.tobytes()
    assert same_bytes(storage)


def test_only_mapped_storages_have_a_file(backend: Backend, file: ModelFile) -> None:
    with Storage(backend, 1) as storage:
        storage.add("w", "f32", (256,))
        storage.allocate(0)
        with pytest.raises(ShapeError, match="not mapped"):
            read_into_large_pages(storage, file.fileno(), LONG)
        with pytest.raises(ShapeError, match="not mapped"):
            bytes_in_large_pages(storage)


@pytest.mark.parametrize(
    ("there", "large_enough", "asked"), [(0, 1, True), (1 << 40, 1, False), (-1, 1, False), (0, 1 << 40, False)],
    ids=["small pages", "large pages", "unknown", "few weights"],
)  # fmt: skip
def test_a_load_asks_where_it_pays(monkeypatch: pytest.MonkeyPatch, there: int, large_enough: int, asked: bool) -> None:
    calls: list[Any] = []

    def read(storage: Storage, descriptor: int, seconds: float) -> int:
        calls.append((os.fstat(descriptor).st_size, seconds))
        return 0

    monkeypatch.setattr(weights, "LARGE_ENOUGH", large_enough)
    monkeypatch.setattr(weights, "bytes_in_large_pages", lambda storage: there)
    monkeypatch.setattr(weights, "read_into_large_pages", read)
    with Engine("demo", num_ctx=64):
        pass
    assert calls == ([(os.stat(demo.path()).st_size, weights.LARGE_PAGES_SECONDS)] if asked else [])
