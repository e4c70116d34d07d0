"""Files of measured times: what is written comes back, and nothing else does."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any
from unittest.mock import Mock

import pytest

from ollama_engine.file_lock import try_lock, unlock
from ollama_engine.ml.weights import kernel_store
from ollama_engine.ml.weights.kernel_store import TimingsFile
from ollama_engine.ml.weights.kernel_timings import Timings
from ollama_engine.ml.weights.kernel_variants import FewRows
from ollama_engine.user_cache import cache_folder

TIMINGS = {
    FewRows("q4_K", 1, False): {"spread": 0.025, "l2-2": 0.02, "repacked": 0.03},
    FewRows("mxfp4", 8, True): {"burst": 0.04, "ggml": 0.05},
}


@pytest.fixture
def file(tmp_path: Path) -> TimingsFile:
    return TimingsFile(tmp_path / "a" / "folder", 2, "1.0")


def test_what_is_written_comes_back(file: TimingsFile) -> None:
    assert file.read() == {}
    file.write(TIMINGS)
    assert file.read() == TIMINGS
    file.write({})
    assert file.read() == {}
    assert [path.name for path in file.folder.iterdir()] == [file.path.name]


def test_another_cpu_version_or_number_of_threads_has_a_file_of_its_own(
    file: TimingsFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write(TIMINGS)
    assert replace(file, threads=3).read() == replace(file, version="1.1").read() == {}
    monkeypatch.setattr(kernel_store, "cpu_identity", lambda: "another")
    assert file.read() == {}


def changed(change: Callable[[Any], object]) -> Callable[[TimingsFile], None]:
    """A change of the content that leaves the file JSON."""

    def write(file: TimingsFile) -> None:
        content = json.loads(file.path.read_bytes())
        change(content)
        file.path.write_text(json.dumps(content), encoding="utf-8")

    return write


def resealed(change: Callable[[Any], object]) -> Callable[[TimingsFile], None]:
    """A change with a checksum that fits."""

    def write(content: Any) -> None:
        change(content["timings"])
        content["checksum"] = kernel_store.checksum(content["timings"])

    return changed(write)


DAMAGE: dict[str, Callable[[TimingsFile], object]] = {
    "empty": lambda file: file.path.write_bytes(b""),
    "cut": lambda file: file.path.write_bytes(file.path.read_bytes()[:-20]),
    "no JSON": lambda file: file.path.write_bytes(b"\xff\x00"),
    "a list": lambda file: file.path.write_bytes(b"[]"),
    "deep": lambda file: file.path.write_bytes(b"[" * 100_000),
    "a bit": lambda file: file.path.write_bytes(file.path.read_bytes().replace(b"0.025", b"0.024")),
    "another's": changed(lambda content: content["about"].update(cpu="another")),
    "no type": resealed(lambda timings: timings[0].update(dtype="q9_K")),
    "a wrong type": resealed(lambda timings: timings[0].update(dtype=7)),
    "rows": resealed(lambda timings: timings[0].update(rows=3)),
    "a kernel": resealed(lambda timings: timings[0]["seconds"].update(l3=0.01)),
    "zero": resealed(lambda timings: timings[0]["seconds"].update(spread=0.0)),
    "no number": resealed(lambda timings: timings[0]["seconds"].update(spread="soon")),
    "infinity": resealed(lambda timings: timings[0]["seconds"].update(spread=float("inf"))),
    "no times": resealed(lambda timings: timings[0].update(seconds={})),
}


@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE.keys())
def test_a_damaged_file_is_refused(file: TimingsFile, damage: Callable[[TimingsFile], object]) -> None:
    file.write(TIMINGS)
    damage(file)
    with pytest.raises(ValueError, match="is damaged: "):
        file.read()
    file.write(TIMINGS)
    assert file.read() == TIMINGS


def test_a_reader_sees_a_whole_file(file: TimingsFile) -> None:
    """While others write."""
    few = FewRows("q4_0", 1, False)
    file.write({few: {"spread": 1.0}})
    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(file.write, {few: {"spread": float(n)}}) for n in range(1, 41)]
        while not all(writer.done() for writer in writers):
            assert file.read()[few]["spread"] in range(1, 41)
        for writer in writers:
            writer.result()


class ReadsBeside(TimingsFile):
    """Reads at the same moment as another one, where nothing keeps them from that."""

    together = Barrier(2)

    def read(self) -> Timings:
        timings = super().read()
        with suppress(BrokenBarrierError):
            self.together.wait(0.2)
        return timings


def test_what_is_added_at_once_is_all_kept(file: TimingsFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads stand for processes: each opens the lock's file anew."""
    monkeypatch.setattr(kernel_store, "LOCK_SECONDS", 60)
    adding = [{FewRows(dtype, 1, False): {"spread": 0.5}} for dtype in ("q4_0", "q8_0")]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(ReadsBeside(file.folder, file.threads, file.version).add, adding))
    assert file.read() == {**adding[0], **adding[1]}
    assert [path.name for path in file.folder.iterdir()] == [file.path.name]


def test_a_load_waits_no_longer_than_a_moment_for_one_that_is_stopped(file: TimingsFile) -> None:
    """Whoever holds the lock for ever: the times are used, and not kept."""
    file.folder.mkdir(parents=True)
    lock = file.path.with_suffix(".lock")
    handle = try_lock(lock)
    assert handle is not None
    assert file.add(TIMINGS) == TIMINGS
    assert file.read() == {}
    unlock(lock, handle)
    assert file.add(TIMINGS) == file.read() == TIMINGS


def test_what_is_kept_wins_and_damage_is_dropped(file: TimingsFile) -> None:
    few = FewRows("q4_0", 1, False)
    file.write({few: {"spread": 1.0}})
    assert file.add({few: {"spread": 2.0}, **TIMINGS}) == {**TIMINGS, few: {"spread": 1.0}}
    file.path.write_bytes(b"")
    assert file.add(TIMINGS) == file.read() == TIMINGS


def test_the_cache_folder_is_where_the_user_wants_caches(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative path means nothing, by the XDG base directory specification."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "ollama_engine"
    for nothing in ("", "caches"):
        monkeypatch.setenv("XDG_CACHE_HOME", nothing)
        assert cache_folder().is_relative_to(Path.home())


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `docker --user` makes one: pathlib raises RuntimeError."""
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(Path, "home", Mock(side_effect=RuntimeError("Could not determine home directory.")))
    with pytest.raises(OSError, match="home directory"):
        cache_folder()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "taken").write_bytes(b"")
    file = TimingsFile(tmp_path / "taken", 2, "1.0")
    for call in (file.check_writable, file.read, lambda: file.write(TIMINGS)):
        with pytest.raises(OSError, match="taken"):
            call()
