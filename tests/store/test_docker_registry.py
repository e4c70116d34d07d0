"""Against a registry that nobody here wrote: Debian's docker-registry, on a free port of this machine."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("httpx", reason="the extra `server` is not installed")

from ollama_engine.errors import ModelNotFoundError
from ollama_engine.store import ModelName, ModelStore
from ollama_engine.store.pull import pull, push
from ollama_engine.store.registry import Registry
from ollama_engine.store.transfers import TransferProgress, TransferSettings
from tests.store.layout import put_model
from tests.support.waiting import join

PROGRAM = shutil.which("docker-registry")
PATIENCE = 50
SETTINGS = TransferSettings(part_bytes=1 << 20, retries=3, first_wait=0.05)
CONFIG = """
version: 0.1
log: {level: info, formatter: json}
storage: {filesystem: {rootdirectory: %s}}
http: {addr: "127.0.0.1:0"}
"""

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="docker-registry (Debian's package) is not installed")


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("registry")
    (folder / "config.yml").write_text(CONFIG % (folder / "data"))
    environment = {**os.environ, "OTEL_TRACES_EXPORTER": "none"}
    assert PROGRAM is not None
    process = subprocess.Popen(
        [PROGRAM, "serve", str(folder / "config.yml")], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        env=environment,
    )  # fmt: skip
    watch = threading.Timer(PATIENCE, process.kill)
    watch.start()
    assert process.stderr is not None
    try:
        found = next(m for line in process.stderr if (m := re.search(r"listening on (127\.0\.0\.1:\d+)", line)))
        watch.cancel()
        reader = threading.Thread(target=lambda: [None for _ in process.stderr or ()])
        reader.start()
        yield found[1]
    finally:
        watch.cancel()
        process.terminate()
        process.wait(PATIENCE)
        join(reader)
        process.stderr.close()


async def push_to(name: ModelName, store: ModelStore) -> list[TransferProgress]:
    told: list[TransferProgress] = []
    async with Registry(name, SETTINGS, insecure=True) as registry:
        await push(registry, store, told.append)
    return told


async def pull_from(name: ModelName, store: ModelStore) -> None:
    async with Registry(name, SETTINGS, insecure=True) as registry:
        await pull(registry, store, lambda _: None)


def test_there_and_back(host: str, tmp_path: Path) -> None:
    here, there = ModelStore(tmp_path / "here"), ModelStore(tmp_path / "there")
    gguf = os.urandom((3 << 20) + 7)
    digest = put_model(here.folder, f"{host}/me/m/v1", [("model", gguf), ("system", b"Be brief."), ("license", b"")])
    name = ModelName.parse(f"{host}/me/m:v1")
    told = asyncio.run(push_to(name, here))
    statuses = list(dict.fromkeys(progress.status for progress in told))
    assert (statuses[0], *statuses[-2:]) == ("retrieving manifest", "pushing manifest", "success")
    assert len(statuses) == 3 + 4
    asyncio.run(pull_from(name, there))
    found = there.find(name)
    assert (found.digest, found.system, found.licenses) == (digest, "Be brief.", ("",))
    assert found.model_path.read_bytes() == gguf


def test_blobs_that_are_there_are_not_sent(host: str, tmp_path: Path) -> None:
    store = ModelStore(tmp_path)
    put_model(store.folder, f"{host}/me/n/latest", [("model", b"GGUF" * 1000)])
    name = ModelName.parse(f"{host}/me/n")
    asyncio.run(push_to(name, store))
    again = [progress for progress in asyncio.run(push_to(name, store)) if progress.digest]
    assert all(progress.completed in (0, progress.total) for progress in again)
    store.delete(name)
    asyncio.run(pull_from(name, store))
    assert store.find(name).model_path.read_bytes() == b"GGUF" * 1000


def test_what_is_not_there(host: str, tmp_path: Path) -> None:
    name = ModelName.parse(f"{host}/me/nothing")
    for work in (pull_from, push_to):
        with pytest.raises(ModelNotFoundError, match="me/nothing:latest' not found"):
            asyncio.run(work(name, ModelStore(tmp_path)))
