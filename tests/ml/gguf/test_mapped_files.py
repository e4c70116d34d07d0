"""The watch on mapped files: what it notices, and when it keeps others from writing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ollama_engine.errors import ClosedError
from ollama_engine.ml.gguf import mapped_files
from ollama_engine.ml.gguf.mapped_files import HAS_LEASES, LOOK_SECONDS, MappedFiles
from tests.support.waiting import status_of

PATIENCE = 30


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "model.gguf"
    made.write_bytes(bytes(10_000))
    os.utime(made, (1_000_000_000, 1_000_000_000))
    return made


@pytest.fixture
def watch(path: Path) -> Iterator[MappedFiles]:
    files = MappedFiles(Clock())
    with path.open("rb") as file:
        files.add(str(path), file.fileno())
    yield files
    files.close()


def grants_leases(path: Path) -> bool:
    if not HAS_LEASES:
        return False
    fcntl = mapped_files.fcntl
    with path.open("rb") as file:
        try:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        except OSError:
            return False
    return True


def step_on(watch: MappedFiles) -> None:
    begin = time.monotonic()
    while time.monotonic() - begin < PATIENCE:
        watch.before_step()


def in_thread(work: object) -> BaseException | None:
    """Call it in a thread, as the engine does, so that this one gets and blocks no signal."""
    found: list[BaseException] = []

    def run() -> None:
        try:
            work()  # type: ignore[operator]
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    return found[0] if found else None


def test_a_file_as_it_was(watch: MappedFiles) -> None:
    def steps() -> None:
        for _ in range(3):
            watch.before_step()
        watch.rest()
        watch.before_step()

    assert in_thread(steps) is None


@pytest.mark.parametrize("change", ["shorter", "longer", "other bytes"])
def test_changes_while_nothing_is_computed(watch: MappedFiles, path: Path, change: str) -> None:
    if change == "shorter":
        os.truncate(path, 5_000)
    else:
        with path.open("ab" if change == "longer" else "r+b") as file:
            file.write(b"x")
    error = in_thread(watch.before_step)
    assert isinstance(error, ClosedError)
    assert str(path) in str(error)
    assert "mmap=False" in str(error)


def test_a_new_file_in_its_place_changes_nothing(watch: MappedFiles, path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(b"x")
    other.replace(path)
    assert in_thread(watch.before_step) is None


def test_a_writer_waits_until_the_file_is_given_back(watch: MappedFiles, path: Path) -> None:
    if not grants_leases(path):
        pytest.skip("this system, file system or user gets no leases")

    def steps() -> None:
        watch.before_step()
        writer = subprocess.Popen([sys.executable, "-c", f"import os; os.truncate({str(path)!r}, 10)"])
        try:
            with pytest.raises(ClosedError, match="opened it for writing"):
                step_on(watch)
            assert path.stat().st_size == 10_000
            assert writer.poll() is None
            watch.close()
            assert writer.wait(PATIENCE) == 0
        finally:
            writer.kill()
            writer.wait(PATIENCE)

    assert in_thread(steps) is None
    assert path.stat().st_size == 10


def test_nobody_waits_while_nothing_is_computed(watch: MappedFiles, path: Path) -> None:
    def step() -> None:
        watch.before_step()
        watch.rest()

    assert in_thread(step) is None
    descriptor = os.open(path, os.O_WRONLY | getattr(os, "O_NONBLOCK", 0))  # raises where it would have to wait
    os.close(descriptor)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_fork_leaves_its_parent_the_lease(watch: MappedFiles) -> None:
    def steps() -> None:
        watch.before_step()
        child = os.fork()
        if not child:
            watch.close()
            os._exit(0)
        status_of(child)
        watch.before_step()

    assert in_thread(steps) is None


def test_without_a_lease_size_and_time_tell(watch: MappedFiles, path: Path) -> None:
    """Who has the file open for writing keeps the watch from getting a lease."""
    with path.open("r+b") as file:
        assert in_thread(watch.before_step) is None
        file.truncate(10)
        assert isinstance(in_thread(watch.before_step), ClosedError)


def test_looks_now_and_then(path: Path) -> None:
    now = [0.0]
    files = MappedFiles(lambda: now[0])
    with path.open("rb") as file:
        files.add(str(path), file.fileno())
    with path.open("r+b") as writer:  # no lease
        assert in_thread(files.before_step) is None
        writer.truncate(10)
        assert in_thread(files.before_step) is None
        now[0] = LOOK_SECONDS
        assert isinstance(in_thread(files.before_step), ClosedError)
    files.close()
    files.close()
    assert in_thread(files.before_step) is None
