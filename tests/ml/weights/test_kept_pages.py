"""KeptPages: what storages held is there again, to the byte; a file that fails changes nothing."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from typing import BinaryIO
from unittest.mock import patch

import numpy as np
import pytest

from ollama_engine.errors import NoMemoryError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.weights import kept_pages
from ollama_engine.ml.weights.kept_pages import KeptPages

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="pages are given back on Linux only")

PAGE = os.sysconf("SC_PAGESIZE") if hasattr(os, "sysconf") else 4096
N = 64 * PAGE // 4 + 5


@pytest.fixture
def backend() -> Iterator[Backend]:
    with Backend(BackendParams(threads=1)) as made:
        yield made


@pytest.fixture
def file() -> Iterator[BinaryIO]:
    with tempfile.TemporaryFile(buffering=0) as made:
        yield made  # type: ignore[misc]


def patterns() -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
    """Nothing but zeros, few pages with something in them, the ends, and everything."""
    rng = np.random.default_rng(1)
    sparse, ends = np.zeros(N, np.float32), np.zeros(N, np.float32)
    sparse[rng.integers(0, N, 7)] = 1.0
    ends[[0, -1]] = 2.0
    return [np.zeros(N, np.float32), sparse, ends, rng.random(N, np.float32)]


def stored(backend: Backend, values: np.ndarray[tuple[int], np.dtype[np.float32]]) -> Storage:
    storage = Storage(backend, 1)
    storage.add("t", "f32", (N,))
    storage.allocate(0)
    storage["t"].set(values)
    return storage


def test_every_byte_comes_back_and_zeros_take_no_disk(backend: Backend, file: BinaryIO) -> None:
    expected = patterns()
    storages = [stored(backend, values) for values in expected]
    kept = KeptPages(backend, file.fileno())
    assert kept.nbytes == sum(storage.nbytes for storage in storages)
    written = os.fstat(file.fileno()).st_blocks * 512
    assert N * 4 <= written < 2 * N * 4, "that of the last pattern, mostly"
    kept.drop()
    for storage, values in zip(storages, expected, strict=True):
        left = storage["t"].numpy()[PAGE // 4 : -PAGE // 4]  # the first and the last page may be shared with others
        assert not left.any() or not values.any()
    kept.load()
    for storage, values in zip(storages, expected, strict=True):
        assert (storage["t"].numpy() == values).all()


def test_a_graph_computes_afterwards(backend: Backend, file: BinaryIO) -> None:
    values = patterns()[-1]
    storage = stored(backend, values)
    with Context(backend) as ctx:
        given = ctx.input("f32", (N,))
        total = storage["t"] + given
        ctx.forward(total)
        for _ in range(2):
            ctx.alloc()
            given.set(values)
            ctx.compute()
            assert (total.numpy() == values + values).all()
            kept = KeptPages(backend, file.fileno())
            kept.drop()
            with pytest.raises(Exception, match="no values"):
                total.numpy()
            kept.load()


def test_a_file_that_cannot_be_written_changes_nothing(backend: Backend) -> None:
    values = patterns()[-1]
    storage = stored(backend, values)
    with open(os.devnull, "rb") as unwritable, pytest.raises(OSError, match="Bad file descriptor"):
        KeptPages(backend, unwritable.fileno())
    assert (storage["t"].numpy() == values).all()


def test_short_memory_changes_nothing(backend: Backend, file: BinaryIO) -> None:
    values = patterns()[-1]
    storage = stored(backend, values)
    kept = KeptPages(backend, file.fileno())
    kept.drop()
    with patch.object(kept_pages, "available_bytes", lambda: 1), pytest.raises(NoMemoryError):
        kept.load()
    kept.load()
    assert (storage["t"].numpy() == values).all()


def test_a_file_takes_no_more_than_its_share_of_the_disk(backend: Backend, file: BinaryIO) -> None:
    storage = stored(backend, patterns()[-1])
    free = os.fstatvfs(file.fileno())
    for nbytes, fits in ((storage.nbytes + PAGE, True), (storage.nbytes - PAGE, False)):
        with (
            patch.object(kept_pages, "SHARE", nbytes / (free.f_bavail * free.f_frsize)),
            patch.object(kept_pages.os, "fstatvfs", lambda _: free),
        ):
            if fits:
                KeptPages(backend, file.fileno())
            else:
                with pytest.raises(OSError, match="No space left"):
                    KeptPages(backend, file.fileno())
