"""Storages filled and brought into memory by several threads at once."""

from __future__ import annotations

import mmap
import os
import re
import resource
from pathlib import Path

import gguf
import numpy as np
import pytest

from ollama_engine.errors import ClosedError, ShapeError
from ollama_engine.ml import ops
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
from ollama_engine.ml.graph.storage import Storage
from tests.plugins.not_run_here import NOT_HERE
from tests.support.emulated import NEEDS_ADVICE

RNG = np.random.default_rng(5)
MAPPED = 16 << 20


# -- fill --------------------------------------------------------------------------------------------------------------


def test_fill_sets_every_tensor(backend: Backend) -> None:
    contents = {f"t{i}": RNG.integers(0, 256, 64 * (i + 1), np.uint8) for i in range(50)}
    with Storage(backend, len(contents)) as storage:
        for name, data in contents.items():
            storage.add(name, "i8", (data.size,))
        storage.allocate(0)
        storage.fill(contents)
        for name, data in contents.items():
            np.testing.assert_array_equal(storage[name].numpy().view(np.uint8), data)
        storage.fill({})
        storage.fill({"t1": bytes(128)})
        assert not storage["t1"].numpy().any()
        np.testing.assert_array_equal(storage["t2"].numpy().view(np.uint8), contents["t2"])


def test_fill_repacks_as_set_bytes_does(backend: Backend) -> None:
    raw = [
        gguf.quants.quantize(RNG.normal(0, 1, (16, 64)).astype(np.float32), gguf.GGMLQuantizationType.Q4_0)
        for _ in range(8)
    ]
    with Storage(backend, 8) as at_once, Storage(backend, 8) as singly, Context(backend) as ctx:
        try:
            for storage in (at_once, singly):
                for i in range(8):
                    storage.add(str(i), "q4_0", (64, 16))
                storage.allocate_repacked()
        except ShapeError:
            pytest.skip(f"{NOT_HERE}a repacked layout of q4_0")
        at_once.fill({str(i): data for i, data in enumerate(raw)})
        for i, data in enumerate(raw):
            singly[str(i)].set_bytes(data)
        x = ctx.from_floats(RNG.normal(0, 1, (3, 64)))
        products = [ops.mul_mat(storage[str(i)], x) for i in range(8) for storage in (at_once, singly)]
        ctx.forward(*products)
        ctx.compute()
        for filled, one_by_one in zip(products[::2], products[1::2], strict=True):
            np.testing.assert_array_equal(filled.numpy(), one_by_one.numpy())


@pytest.mark.parametrize(
    ("contents", "error", "match"),
    [
        ({"a": bytes(8), "b": bytes(7)}, ShapeError, "holds 8 bytes, the buffer 7"),
        ({"a": bytes(8), "c": bytes(8)}, KeyError, "c"),
        ({"a": bytes(8), "b": "text"}, TypeError, "bytes-like"),
        ({"a": bytes(8), "b": np.zeros((4, 4), np.uint8)[:, :2]}, ValueError, "contiguous"),
    ],
)
def test_fill_changes_nothing_when_one_does_not_fit(
    backend: Backend, contents: dict[str, bytes], error: type[Exception], match: str
) -> None:
    with Storage(backend, 2) as storage:
        for name in "ab":
            storage.add(name, "i8", (8,))
        with pytest.raises(ShapeError, match="allocate its Storage first"):
            storage.fill({"a": bytes(8)})
        storage.allocate(0)
        storage["a"].set_bytes(bytes([1]) * 8)
        with pytest.raises(error, match=match):
            storage.fill(contents)
        np.testing.assert_array_equal(storage["a"].numpy(), np.ones(8))
    with pytest.raises(ClosedError):
        storage.fill({"a": bytes(8)})


# -- populate ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "weights"
    path.write_bytes(bytes(MAPPED))
    return path


def mapped(backend: Backend, file: Path) -> Storage:
    storage = Storage(backend, 1)
    storage.add("t", "i8", (MAPPED,))
    with file.open("rb") as opened:
        storage.map(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ), {"t": 0})
    return storage


@NEEDS_ADVICE
@pytest.mark.skipif("san." in os.environ.get("LD_PRELOAD", ""), reason="shadows of memory are not populated")
def test_what_was_populated_is_read_without_page_faults(backend: Backend, file: Path) -> None:
    out = np.ones(MAPPED, np.int8)
    with mapped(backend, file) as storage:
        if not storage.populate(100, MAPPED - 100):
            pytest.skip("this system cannot populate a mapping")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        storage["t"].read_into(out)
        # Page by page, and even with the 16 pages that Linux maps around each, there would be 256 at least.
        assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 128
    assert not out.any()


def wants_large_pages(words: str) -> bool:
    """Of one range of /proc/self/smaps: whether large pages were asked for."""
    flags = re.search(r"VmFlags:(.*)", words)
    return flags is not None and "hg" in flags[1].split()


def bytes_in_large_pages(path: str = "") -> int:
    """Bytes of the ranges, of this file alone if any, for which large pages were asked for."""
    ranges = re.split(r"\n(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())
    places = (words.split()[0].split("-") for words in ranges if path in words and wants_large_pages(words))
    return sum(int(end, 16) - int(start, 16) for start, end in places)


OF_ITS_OWN = 64 << 20
"""Bytes: glibc takes smaller blocks from ranges that it keeps, and which may have asked before."""
large_pages = pytest.mark.skipif(
    not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="this system has no large pages"
)


@large_pages
def test_memory_asks_for_large_pages(backend: Backend) -> None:
    before = bytes_in_large_pages()
    with Storage(backend, 1) as storage:
        storage.add("t", "i8", (OF_ITS_OWN,))
        storage.allocate(0)
        assert bytes_in_large_pages() - before >= OF_ITS_OWN


@large_pages
def test_a_populated_mapping_asks_for_large_pages(backend: Backend, file: Path) -> None:
    with mapped(backend, file) as storage:
        assert bytes_in_large_pages(str(file)) == 0  # whoever reads a few of its pages does not want others
        storage.populate(0, 1)
        assert bytes_in_large_pages(str(file)) == MAPPED


@NEEDS_ADVICE
def test_a_file_that_became_shorter_is_no_crash(backend: Backend, file: Path) -> None:
    with mapped(backend, file) as storage:
        with file.open("r+b") as opened:
            opened.truncate(MAPPED // 2)
        assert not storage.populate(0, MAPPED)


@pytest.mark.parametrize(("offset", "size"), [(-1, 1), (0, -1), (0, MAPPED + 1), (MAPPED, 1), (1 << 62, 1 << 62)])
def test_only_mapped_bytes_are_populated(backend: Backend, file: Path, offset: int, size: int) -> None:
    with mapped(backend, file) as storage:
        storage.populate(MAPPED, 0)
        with pytest.raises(ShapeError, match="are not all within the 16777216 mapped ones"):
            storage.populate(offset, size)
    with pytest.raises(ClosedError):
        storage.populate(0, 1)


def test_only_a_mapping_is_populated(backend: Backend) -> None:
    with Storage(backend, 1) as storage:
        storage.add("t", "i8", (8,))
        with pytest.raises(ShapeError, match="not mapped"):
            storage.populate(0, 1)


def test_parts_are_read_and_written_in_place(backend: Backend) -> None:
    with Storage(backend, 1) as storage:
        storage.add("t", "f32", (2, 3))
        storage.allocate(0)
        storage["t"].set(np.arange(6, dtype=np.float32))
        storage["t"].set_part(8, np.array([7, 8], np.float32))
        row = np.empty(2, np.float32)
        storage["t"].read_part(8, row)
        assert row.tolist() == [7, 8]
        assert storage["t"].numpy().ravel().tolist() == [0, 1, 7, 8, 4, 5]
        for offset, size in ((20, 2), (24, 1), (28, 0), (1 << 40, 1)):
            for call in (storage["t"].read_part, storage["t"].set_part):
                with pytest.raises(ShapeError):
                    call(offset, np.empty(size, np.float32))
        storage["t"].read_part(24, np.empty(0, np.float32))
        with pytest.raises((OverflowError, ShapeError)):
            storage["t"].read_part(-1, row)
