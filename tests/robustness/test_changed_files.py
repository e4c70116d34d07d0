"""A model's file that changes under a live Engine: an error that says so, and never the end of the process."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ollama_engine import Engine, demo
from ollama_engine.errors import ClosedError
from ollama_engine.ml.gguf import mapped_files
from ollama_engine.runner.core.engine_core import EngineCore
from tests.ml.gguf.test_mapped_files import grants_leases
from tests.support.waiting import eventually

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="nobody truncates there")

CHANGES = {
    "truncate": "import os; os.truncate(path, 1000)",
    "open": "open(path, 'wb').write(b'x')",
    "overwrite": "file = open(path, 'r+b'); file.seek(200_000); file.write(os.urandom(1_000_000))",
    "replace": "open(path + '.new', 'wb').write(b'x'); os.replace(path + '.new', path)",
}
CHILD = """
import subprocess, sys, threading
from ollama_engine import Engine, SamplingParams
from ollama_engine.errors import ClosedError, EngineError

path, change, busy, mmap = sys.argv[1], sys.argv[2], sys.argv[3] == "busy", sys.argv[4] == "mapped"
engine = Engine(path, num_ctx=256, threads=1, mmap=mmap)
few = SamplingParams(max_tokens=3, temperature=0)
before = engine.generate("Once", few).text
writer = [sys.executable, "-c", f"import os; path = {path!r}; {change}"]
try:
    if busy:
        process = None
        while process is None or process.poll() is None:
            for _ in engine.stream("Once", SamplingParams(max_tokens=200)):
                process = process or subprocess.Popen(writer)
        engine.generate("Once", few)
    else:
        subprocess.run(writer, check=True)
    after = engine.generate("Once", few).text
    print("same" if after == before else "other")
except EngineError as error:
    print(type(error).__name__, error)
    try:
        engine.generate("Once", few)
    except ClosedError as later:
        print("later", later)
    if busy:
        process.wait()
"""


def child(path: Path, change: str, when: str, how: str) -> str:
    shutil.copy(demo.path(), path)
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), CHANGES[change], when, how],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run
    return run.stdout


@pytest.mark.parametrize("change", ["truncate", "open", "overwrite"])
@pytest.mark.parametrize("when", ["idle", "busy"])
def test_a_mapped_file_that_changes(tmp_path: Path, change: str, when: str) -> None:
    path = tmp_path / "model.gguf"
    shutil.copy(demo.path(), path)
    if when == "busy" and not grants_leases(path):
        pytest.skip("without leases a file that changes in the middle of a step ends the process")
    said = child(path, change, when, "mapped").splitlines()
    assert said[0].startswith(f"ClosedError {path}: ")
    assert "mmap=False" in said[0]
    assert said[1].startswith(f"later {path}: ")


def test_a_writer_waits_for_one_step_of_a_long_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many are left. The one that a writer comes in is the last: the engine's thread looks before each."""
    path = tmp_path / "model.gguf"
    shutil.copy(demo.path(), path)
    if not grants_leases(path):
        pytest.skip("without leases nobody waits")
    leases: list[int] = []
    hold, step = mapped_files._MappedFile.hold, EngineCore.step
    writers: list[subprocess.Popen[bytes]] = []
    steps: list[int] = []

    def held(self: Any, thread: int) -> None:
        hold(self, thread)
        leases.append(self._descriptor)

    def stepped(self: EngineCore) -> None:
        steps.append(len(writers))
        if len(steps) == 5:
            writers.append(subprocess.Popen([sys.executable, "-c", f"open({str(path)!r}, 'r+b')"]))
            eventually(lambda: fcntl.fcntl(leases[-1], fcntl.F_GETLEASE) != fcntl.F_RDLCK)
            assert writers[0].poll() is None, "it waits"
        step(self)

    monkeypatch.setattr(mapped_files._MappedFile, "hold", held)
    monkeypatch.setattr(EngineCore, "step", stepped)
    monkeypatch.setattr(mapped_files, "LOOK_SECONDS", 0.0)
    with Engine(path, num_ctx=512, threads=1, batch_size=8) as engine:
        with pytest.raises(ClosedError, match="opened it for writing"):
            engine.generate(list(range(3, 403)), max_tokens=1)
        assert writers[0].wait(60) == 0
    assert steps == [0] * 5, "50 were to come"


@pytest.mark.parametrize("change", ["truncate", "overwrite"])
def test_copied_weights(tmp_path: Path, change: str) -> None:
    assert child(tmp_path / "model.gguf", change, "idle", "copied") == "same\n"


def test_a_file_that_is_replaced(tmp_path: Path) -> None:
    assert child(tmp_path / "model.gguf", "replace", "busy", "mapped") == "same\n"
