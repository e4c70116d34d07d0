"""Mapped weights whose file a program has just written, in small pieces, and so in small pages."""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ollama_engine import Engine, demo
from ollama_engine.errors import ShapeError
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.gguf.gguf_file import TensorInfo
from ollama_engine.ml.gguf.model_file import ModelFile
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.storage import Storage
from ollama_engine.ml.weights import page_enlarger
from ollama_engine.ml.weights.large_pages import AT_ONCE, bytes_in_large_pages, read_into_large_pages
from ollama_engine.ml.weights.page_enlarger import PageEnlarger

LARGE = 2 << 20
SIZE = 48 * LARGE + 12_288
WHOLE = 48 * LARGE
NUMBERS = np.random.default_rng(0).integers(0, 256, SIZE, np.uint8)


def tensor(begin: int, end: int) -> TensorInfo:
    return TensorInfo("w", "f32", ((end - begin) // 4,), begin, end - begin, 0)


ALL = [tensor(0, SIZE)]


@pytest.fixture(autouse=True)
def any_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_enlarger, "LEAST_SPEED", 0.0)
    monkeypatch.setattr(page_enlarger, "SECONDS", 60.0)


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
        if bytes_in_large_pages(made, 0, WHOLE) < 0:
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


def in_large_pages(storage: Storage) -> int:
    return bytes_in_large_pages(storage, 0, WHOLE)


def free_in_large_pages() -> int:
    """Bytes of memory that are free in pieces of 2 MiB and more; others Linux need not join for a file."""
    pages = 0
    for line in Path("/proc/buddyinfo").read_text().splitlines():
        counts = [int(count) for count in line.split()[4:]]
        pages += sum(count << order for order, count in enumerate(counts) if mmap.PAGESIZE << order >= LARGE)
    return pages * mmap.PAGESIZE


@pytest.fixture
def large_pages(tmp_path: Path, storage: Storage) -> None:
    if not has_large_pages(tmp_path):
        pytest.skip("this system has no large pages for files here: Linux has since 6.16, on ext4")
    if (free := free_in_large_pages()) < 4 * SIZE:
        pytest.skip(f"of free memory only {free >> 20} MiB are in pieces of 2 MiB")


@pytest.mark.usefixtures("large_pages")
def test_what_lies_in_small_pages_is_read_into_large_ones(
    storage: Storage, file: ModelFile, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", page_enlarger.__name__)
    before = in_large_pages(storage)
    assert before < SIZE // 2, "the file was written in small pieces"
    PageEnlarger().enlarge(storage, file, ALL)
    after = in_large_pages(storage)
    pieces = [bytes_in_large_pages(storage, at, AT_ONCE) for at in range(0, WHOLE, AT_ONCE)]
    assert min(pieces) >= AT_ONCE // 2, "where other programs run, some pages stay small; not most of a whole piece"
    assert sum(pieces) == after
    assert same_bytes(storage)
    assert f"now {after >> 20} of {WHOLE >> 20} MiB lie in large pages" in caplog.text


@pytest.mark.usefixtures("large_pages")
def test_what_lies_in_large_pages_is_not_read_again(storage: Storage, file: ModelFile) -> None:
    read_into_large_pages(storage, file.fileno(), 0, 2 * LARGE)
    before = bytes_in_large_pages(storage, 0, AT_ONCE)
    assert 0 < before < AT_ONCE
    read, gained = read_into_large_pages(storage, file.fileno(), 0, SIZE)
    assert read == AT_ONCE - before
    assert gained == bytes_in_large_pages(storage, 0, AT_ONCE) - before > 0


def test_pages_of_other_tensors_stay(storage: Storage, file: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of those that a GPU has: only what the CPU multiplies is worth the disk's time."""
    monkeypatch.setattr(page_enlarger, "LARGE_ENOUGH", 1)
    before = bytes_in_large_pages(storage, 8 * LARGE, 32 * LARGE)
    PageEnlarger().enlarge(storage, file, [tensor(0, 8 * LARGE), tensor(40 * LARGE, SIZE)])
    assert bytes_in_large_pages(storage, 8 * LARGE, 32 * LARGE) == before
    assert same_bytes(storage)


def test_pages_that_another_mapping_holds_stay(storage: Storage, file: ModelFile) -> None:
    """As another process's engine holds them: nothing is gained, and it reads what it read."""
    before = in_large_pages(storage)
    with ExitStack() as stack:
        other = stack.enter_context(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        assert other[:: mmap.PAGESIZE] == NUMBERS[:: mmap.PAGESIZE].tobytes()
        PageEnlarger().enlarge(storage, file, ALL)
        assert in_large_pages(storage) <= before + page_enlarger.FIRST
        assert other[:] == NUMBERS.tobytes()
    assert same_bytes(storage)


def test_only_mapped_bytes_have_pages(backend: Backend, storage: Storage, file: ModelFile) -> None:
    for begin, size in ((-LARGE, LARGE), (0, SIZE + (1 << 20)), (SIZE, LARGE), (0, -1)):
        with pytest.raises(ShapeError, match="not all within"):
            bytes_in_large_pages(storage, begin, size)
        with pytest.raises(ShapeError, match="not all within"):
            read_into_large_pages(storage, file.fileno(), begin, size)
    with Storage(backend, 1) as other:
        other.add("w", "f32", (256,))
        other.allocate(0)
        with pytest.raises(ShapeError, match="not mapped"):
            bytes_in_large_pages(other, 0, LARGE)


# -- when, and for how long --------------------------------------------------------------------------------------------


class Disk:
    """Stands for the system's calls: all pages are small, and each becomes large when it is read."""

    nbytes = SIZE

    def __init__(self, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self.now = 0.0
        self.there = 0
        self.large: Callable[[int], int] = lambda begin: AT_ONCE
        self.pieces: list[tuple[int, int]] = []

    def count(self, storage: object, begin: int, size: int) -> int:
        return self.there

    def read(self, storage: object, file: int, begin: int, size: int) -> tuple[int, int]:
        self.pieces.append((begin // LARGE, size // LARGE))
        self.now += self.seconds * size / AT_ONCE
        return size, min(self.large(begin), size)

    def fileno(self) -> int:
        return 0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    made = Disk()
    monkeypatch.setattr(page_enlarger, "bytes_in_large_pages", made.count)
    monkeypatch.setattr(page_enlarger, "read_into_large_pages", made.read)
    monkeypatch.setattr(page_enlarger, "time", SimpleNamespace(monotonic=lambda: made.now))
    return made


def enlarge(disk: Disk, infos: list[TensorInfo], pages: PageEnlarger | None = None) -> list[tuple[int, int]]:
    """Numbers of the first 2 MiB and of all of them, of each piece that was read."""
    given: Any = disk
    (pages or PageEnlarger()).enlarge(given, given, infos)
    return disk.pieces


def test_pieces_are_short_enough_for_signals_and_read_once(disk: Disk) -> None:
    assert enlarge(disk, ALL) == [(0, 2), (2, 16), (18, 16), (34, 14)]


def test_pieces_are_those_of_the_tensors(disk: Disk) -> None:
    infos = [tensor(33 * LARGE, SIZE), tensor(5 * LARGE + 32, 22 * LARGE + 32), tensor(2 * LARGE, 5 * LARGE + 32)]
    assert enlarge(disk, infos) == [(2, 2), (4, 16), (20, 3), (33, 15)]


def test_all_files_share_the_time(disk: Disk) -> None:
    disk.seconds, pages = 35.0, PageEnlarger()
    enlarge(disk, ALL, pages)
    assert len(disk.pieces) == 3, "74 s of 60, told by the last piece"
    enlarge(disk, ALL, pages)
    assert len(disk.pieces) == 3


def test_a_slow_disk_reads_two_pieces(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_enlarger, "LEAST_SPEED", AT_ONCE / 2)
    disk.seconds = 1.9
    assert len(enlarge(disk, ALL)) == 4
    disk.pieces, disk.seconds = [], 2.1
    assert len(enlarge(disk, ALL)) == 2, "of 36 MiB: so few as the first 4 tell nothing of a disk"


def test_pages_that_stay_small_end_it(disk: Disk) -> None:
    disk.large = lambda begin: 0
    assert enlarge(disk, ALL) == [(0, 2)]
    disk.pieces, disk.large = [], lambda begin: LARGE if begin == 0 else 0
    assert enlarge(disk, ALL) == [(0, 2), (2, 16)]


@pytest.mark.parametrize(
    ("there", "large_enough"), [(WHOLE, 1), (-1, 1), (0, 1 << 40)], ids=["large pages", "unknown", "few weights"]
)
def test_it_reads_where_it_pays(disk: Disk, monkeypatch: pytest.MonkeyPatch, there: int, large_enough: int) -> None:
    monkeypatch.setattr(page_enlarger, "LARGE_ENOUGH", large_enough)
    disk.there = there
    assert enlarge(disk, ALL) == []


def test_a_load_asks_for_its_mapped_file(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    def enlarge(self: PageEnlarger, storage: Storage, file: ModelFile, infos: list[TensorInfo]) -> None:
        calls.append((os.fstat(file.fileno()).st_size, len(infos) > 1))

    monkeypatch.setattr(PageEnlarger, "enlarge", enlarge)
    with Engine("demo", num_ctx=64):
        pass
    assert calls == [(os.stat(demo.path()).st_size, True)]
