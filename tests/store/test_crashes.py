"""Processes that are killed while they change a store: what was reported done is there, and what is listed is whole."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ollama_engine.errors import ModelNotFoundError
from ollama_engine.store import ModelName, ModelStore
from tests.store.fake_registry import FakeRegistry, serving
from tests.store.layout import check_blobs, files, put_model
from tests.support.suite import scaled
from tests.support.tiny import write_tiny_llama

LIBRARY = "registry.ollama.ai/library"
PATIENCE = 50
ROOT = Path(__file__).resolve().parents[2]

PULL = """
import asyncio, sys
from ollama_engine.store import ModelName, ModelStore
from ollama_engine.store.pull import pull
from ollama_engine.store.registry import Registry
from ollama_engine.store.transfers import TransferSettings

async def main():
    print("begin", flush=True)
    async with Registry(ModelName.parse(sys.argv[2]), TransferSettings(part_bytes=100_000), insecure=True) as registry:
        await pull(registry, ModelStore(sys.argv[1]), lambda progress: None)
    print("done", flush=True)

asyncio.run(main())
"""

COPY_AND_DELETE = """
import itertools, sys
from ollama_engine.store import ModelName, ModelStore

store = ModelStore(sys.argv[1])
print("begin", flush=True)
for number in itertools.count():
    store.copy(ModelName.parse("seed"), ModelName.parse(f"copy{number}"))
    print("copied", number, flush=True)
    if number:
        store.delete(ModelName.parse(f"copy{number - 1}"))
        print("deleted", number - 1, flush=True)
"""

CREATE = """
import itertools, sys
from pathlib import Path
from ollama_engine.store import ModelName, ModelStore
from ollama_engine.store.create import Recipe, create
from ollama_engine.store.sources import SourceFile

store = ModelStore(sys.argv[1])
print("begin", flush=True)
for number in itertools.count():
    recipe = Recipe(files=[SourceFile("m.gguf", Path(sys.argv[2]))], quantize=("", "q8_0")[number % 2],
                    system=f"You are {number}.")
    create(store, ModelName.parse(f"made{number}"), recipe, lambda progress: None)
    print("created", number, flush=True)
"""


def killed(script: str, *arguments: str, after: float) -> list[str]:
    """Run a script, kill it so many seconds after its first line, and return all lines that it wrote."""
    process = subprocess.Popen(
        [sys.executable, "-c", script, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stderr is not None
    with process.stdout, process.stderr:
        assert process.stdout.readline() == "begin\n", process.stderr.read()
        time.sleep(after)
        process.kill()
        lines = process.stdout.read().splitlines()
        assert process.wait(PATIENCE) in (-signal.SIGKILL, 0), process.stderr.read()
    return [line for line in lines if line]


def assert_consistent(store: ModelStore) -> None:
    """Every manifest is readable, and every blob is there and is what its name says."""
    check_blobs(store)
    store.prune(claimed=0, partial=0)
    used = {f"blobs/{layer.digest.replace(':', '-')}" for entry in store.entries() for layer in entry.manifest.blobs}
    assert {name for name in files(store.folder) if not name.startswith("manifests/")} == used


def moments(rounds: int, longest: float) -> list[float]:
    rng = random.Random(17)
    return [rng.uniform(0, longest) for _ in range(rounds)]


def test_killed_while_it_pulls(tmp_path: Path) -> None:
    store, data = ModelStore(tmp_path), os.urandom(1_000_000)
    with serving() as fake:
        for model in ("me/m/latest", "me/last/latest"):
            fake.add(model, [("model", data), ("system", b"s")])
        name, last = (ModelName.parse(f"{fake.host}/me/{model}") for model in ("m", "last"))
        fake.faults.seconds_per_piece = 0.02
        for after in moments(scaled(6, quick=2), 0.3):
            lines = killed(PULL, str(tmp_path), str(name), after=after)
            if "done" in lines:
                assert store.find(name)
            elif not store.entries():
                with pytest.raises(ModelNotFoundError):
                    store.find(name)
        fake.faults.seconds_per_piece = 0.0
        done = subprocess.run(
            [sys.executable, "-c", PULL, str(tmp_path), str(last)], capture_output=True, text=True, timeout=PATIENCE,
            check=False,
        )  # fmt: skip
        assert done.stdout == "begin\ndone\n", done.stderr
        # A busy machine may see requests of a killed process only now, so the last pull is of another model's name.
        assert _bytes_asked(fake, "/me/last/") <= 1_000_500
    assert store.find(last).model_path.read_bytes() == data
    assert_consistent(store)


def test_two_processes_share_a_pull(tmp_path: Path) -> None:
    with serving() as fake:
        fake.add("me/m/latest", [("model", os.urandom(400_000)), ("system", b"s")])
        fake.faults.seconds_per_piece = 0.05
        command = [sys.executable, "-c", PULL, str(tmp_path), f"{fake.host}/me/m"]
        processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        assert [process.communicate(timeout=PATIENCE)[0] for process in processes] == ["begin\ndone\n"] * 2
        assert len(fake.blob_requests()) == 4 + 1 + 1, "each part of each blob once"
    assert_consistent(ModelStore(tmp_path))


def _bytes_asked(fake: FakeRegistry, of: str) -> int:
    """Bytes of blobs that were asked for, of a model with this in its path."""
    ranges = [part[6:].split("-") for _, path, part in fake.asked if "/blobs/" in path and of in path]
    return sum(int(end) + 1 - int(begin) for begin, end in ranges)


def test_killed_while_it_copies_and_deletes(tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    put_model(tmp_path, f"{LIBRARY}/seed/latest", [("model", b"GGUF" * 1000)])
    for after in moments(scaled(8, quick=2), 0.1):
        lines = [line.split() for line in killed(COPY_AND_DELETE, str(tmp_path), after=after)]
        copied = {int(number) for what, number in lines if what == "copied"}
        deleted = {int(number) for what, number in lines if what == "deleted"}
        names = {entry.name.model for entry in store.entries()}
        assert "seed" in names
        assert not {f"copy{number}" for number in deleted} & names
        kept = sorted(copied - deleted)[-1:]  # the one before it may be deleted, and that not reported yet
        assert {f"copy{number}" for number in kept} <= names
        assert_consistent(store)
        for name in names - {"seed"}:
            store.delete(ModelName.parse(name))
    assert store.find("seed").model_path.read_bytes() == b"GGUF" * 1000


def test_ended_at_every_step(tmp_path: Path) -> None:
    """Deletes, copies, ends of downloads and creations, each ended before each of its file operations."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.dying_at_every_step", str(tmp_path)], cwd=ROOT, capture_output=True,
        text=True, timeout=PATIENCE * 4, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    steps = {name: int(count) for name, count in (line.split() for line in done.stdout.splitlines())}
    assert steps.keys() == {"delete", "copy", "replace", "download", "create"}
    assert all(count >= 5 for count in steps.values()), steps


def test_killed_while_it_creates(tmp_path: Path) -> None:
    store = ModelStore(tmp_path / "models")
    source = write_tiny_llama(tmp_path / "tiny.gguf", metadata={"general.file_type": 0}).path
    for after in moments(scaled(5, quick=1), 0.4):
        lines = [line.split() for line in killed(CREATE, str(store.folder), source, after=after)]
        for _, number in lines:
            assert store.find(f"made{number}").system == f"You are {number}."
        assert_consistent(store)
