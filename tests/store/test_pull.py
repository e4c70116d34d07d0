from __future__ import annotations

import asyncio
import errno
import gzip
import json
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest

pytest.importorskip("httpx", reason="the extra `server` is not installed")

import httpx

from ollama_engine.errors import ModelNotFoundError, RegistryError
from ollama_engine.store import ModelName, ModelStore
from ollama_engine.store.manifest import Layer
from ollama_engine.store.pull import fetch, pull
from ollama_engine.store.registry import Registry
from ollama_engine.store.transfers import SharedTransfers, TransferProgress, TransferSettings
from tests.store.fake_registry import FakeRegistry, serving
from tests.store.layout import files, sha256

SETTINGS = TransferSettings(part_bytes=50_000, retries=3, first_wait=0.01, timeout=20)
GGUF = os.urandom(300_000)
DIGEST = "sha256:" + sha256(GGUF)


@pytest.fixture
def fake() -> Iterator[FakeRegistry]:
    with serving() as fake:
        fake.add("me/m/latest", [("model", GGUF), ("system", b"Be brief.")])
        yield fake


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path)


def name_at(fake: FakeRegistry, model: str = "me/m") -> ModelName:
    return ModelName.parse(f"{fake.host}/{model}")


async def pulled(
    fake: FakeRegistry, store: ModelStore, settings: TransferSettings = SETTINGS, model: str = "me/m"
) -> list[TransferProgress]:
    told: list[TransferProgress] = []
    async with Registry(name_at(fake, model), settings, insecure=True) as registry:
        await pull(registry, store, told.append)
    return told


def assert_whole(fake: FakeRegistry, store: ModelStore) -> None:
    found = store.find(name_at(fake))
    assert found.model_path.read_bytes() == GGUF
    assert found.system == "Be brief."
    assert len(files(store.folder)) == 4, "nothing else is left"
    assert not list(store.blobs.lock_folder.iterdir())


def test_pull(fake: FakeRegistry, store: ModelStore) -> None:
    told = asyncio.run(pulled(fake, store))
    assert_whole(fake, store)
    path = store.folder / "manifests" / fake.host / "me" / "m" / "latest"
    assert path.read_bytes() == fake.manifests["me/m/latest"], "the id is the registry's"
    statuses = list(dict.fromkeys(progress.status for progress in told))
    assert (statuses[0], *statuses[-3:]) == (
        "pulling manifest",
        "verifying sha256 digest",
        "writing manifest",
        "success",
    )
    assert f"pulling {sha256(GGUF)[:12]}" in statuses
    last = [progress for progress in told if progress.digest == DIGEST][-1]
    assert last.as_json() == {
        "status": f"pulling {sha256(GGUF)[:12]}", "digest": DIGEST, "total": 300_000, "completed": 300_000,
    }  # fmt: skip
    ranges = sorted(part for digest, part in fake.blob_requests() if digest == DIGEST)
    assert len(ranges) == 6
    assert "bytes=250000-299999" in ranges


def test_what_is_there_is_not_read_again(fake: FakeRegistry, store: ModelStore) -> None:
    asyncio.run(pulled(fake, store))
    before = len(fake.blob_requests())
    asyncio.run(pulled(fake, store))
    assert len(fake.blob_requests()) == before


def test_failures_that_pass(fake: FakeRegistry, store: ModelStore) -> None:
    fake.faults.status = [500, 503, 429]
    fake.faults.cut_after = [0, 20_000, 30_000, 100]
    asyncio.run(pulled(fake, store))
    assert_whole(fake, store)
    assert any(int(part[6:].partition("-")[0]) % 50_000 for _, part in fake.blob_requests()), "a part was resumed"


def test_failures_that_do_not_pass(fake: FakeRegistry, store: ModelStore) -> None:
    fake.faults.status = [500] * 100
    with pytest.raises(RegistryError, match="status 500"):
        asyncio.run(pulled(fake, store))
    assert store.entries() == []
    fake.faults.status = []
    asyncio.run(pulled(fake, store))
    assert_whole(fake, store)


def test_a_disk_without_room_is_told_in_units_that_people_read(
    fake: FakeRegistry, store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Mock(free=42_100_000_000))
    layers = [Layer.of("model", DIGEST, 42_500_000_000)]

    async def fetched() -> None:
        async with Registry(name_at(fake), SETTINGS, insecure=True) as registry:
            await fetch(registry, store, layers, Mock(), Mock())

    with pytest.raises(OSError, match="takes 42 GB more, and 42 GB are free; 400 MB more must be") as raised:
        asyncio.run(fetched())
    assert raised.value.errno == errno.ENOSPC
    assert not fake.blob_requests()


def test_a_registry_without_ranges(fake: FakeRegistry, store: ModelStore) -> None:
    fake.faults.ignores_ranges = True
    fake.faults.cut_after = [70_000]
    asyncio.run(pulled(fake, store))
    assert_whole(fake, store)


def test_other_content_is_refused(fake: FakeRegistry, store: ModelStore) -> None:
    fake.faults.wrong_bytes = 1
    with pytest.raises(RegistryError, match="digest mismatch"):
        asyncio.run(pulled(fake, store))
    assert not any("sha256" in name and "partial" in name for name in files(store.folder) if sha256(GGUF) in name)
    assert store.entries() == []
    asyncio.run(pulled(fake, store))
    assert_whole(fake, store)


def test_models_that_are_not_there(fake: FakeRegistry, store: ModelStore) -> None:
    with pytest.raises(ModelNotFoundError, match="me/other:latest' not found"):
        asyncio.run(pulled(fake, store, model="me/other"))
    del fake.blobs[DIGEST]
    with pytest.raises(ModelNotFoundError, match="blobs/sha256"):
        asyncio.run(pulled(fake, store))
    fake.manifests["me/other/latest"] = b"<html>"
    with pytest.raises(ValueError, match="this is no manifest"):
        asyncio.run(pulled(fake, store, model="me/other"))


def test_nobody_answers(store: ModelStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: a name that is wrong stays wrong."""
    monkeypatch.setattr(TransferSettings, "wait", Mock(side_effect=AssertionError("it is tried again")))
    with serving() as gone:
        pass
    with pytest.raises(RegistryError, match=r"cannot be reached .*network right"):
        asyncio.run(pulled(gone, store, TransferSettings(retries=1)))


@pytest.mark.parametrize("where", ["/v2/me/m/manifests/latest", "http://[nowhere"])
def test_a_registry_that_leads_nowhere(fake: FakeRegistry, store: ModelStore, where: str) -> None:
    async def handle(self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        return httpx.Response(307, headers={"Location": where})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
        with pytest.raises(RegistryError, match=fake.host):
            asyncio.run(pulled(fake, store))


def test_a_registry_that_has_answered_is_asked_again(fake: FakeRegistry, store: ModelStore) -> None:
    """When it is not reached any more, as while it starts anew."""
    real, refused = httpx.AsyncHTTPTransport.handle_async_request, []

    async def handle(self: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
        if "/blobs/" in request.url.path and len(refused) < 2:
            refused.append(request.url)
            raise httpx.ConnectError("refused")
        return await real(self, request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", handle)
        asyncio.run(pulled(fake, store))
    assert len(refused) == 2
    assert_whole(fake, store)


def test_a_token_is_asked_for(fake: FakeRegistry, store: ModelStore) -> None:
    fake.faults.wants_token = True
    asyncio.run(pulled(fake, store))
    assert_whole(fake, store)
    (token,) = {path for _, path, _ in fake.asked if path.startswith("/token")}
    assert token == "/token?service=fake&scope=repository%3Aa%3Apull"


def test_what_compressed_bytes_stand_for_is_limited(fake: FakeRegistry, store: ModelStore) -> None:
    fake.faults.compressed = gzip.compress(bytes(128 << 20), 1)  # a read of 64 KiB stands for some 15 MiB
    tracemalloc.start()
    try:
        with pytest.raises(RegistryError, match="more than 4 MiB"):
            asyncio.run(pulled(fake, store))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 96 << 20


def test_a_registry_over_https_leads_to_no_http(fake: FakeRegistry, store: ModelStore) -> None:
    async def ask() -> None:
        async with Registry(name_at(fake), SETTINGS) as registry:
            challenge = {"WWW-Authenticate": f'Bearer realm="http://{fake.host}/token"'}
            await registry._authorize(httpx.Response(401, headers=challenge))

    with pytest.raises(RegistryError, match="without TLS"):
        asyncio.run(ask())
    assert not fake.asked


def test_cancelled_and_resumed(fake: FakeRegistry, store: ModelStore) -> None:
    fake.faults.goes_on.clear()

    async def begin() -> None:
        task = asyncio.create_task(pulled(fake, store))
        while sum(part.get("Completed", 0) for part in saved(store)) < 50_000:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        fake.faults.goes_on.set()

    asyncio.run(begin())
    notes = saved(store)
    done = sum(note["Completed"] for note in notes)
    assert 50_000 <= done < 300_000
    assert store.entries() == []
    fake.asked.clear()
    asyncio.run(pulled(fake, store))
    assert_whole(fake, store)
    again = {part for digest, part in fake.blob_requests() if digest == DIGEST}
    ends = {note["Offset"] + note["Size"] - 1: note for note in notes}
    for end, note in ends.items():
        begin = note["Offset"] + note["Completed"]
        asked = {part for part in again if part.endswith(f"-{end}")}
        # A request of the first call for a part of which nothing came may reach the server late.
        assert asked == ({f"bytes={begin}-{end}"} if begin <= end else set())


def saved(store: ModelStore) -> list[dict[str, int]]:
    """The notes on disk about the large blob's parts."""
    return [json.loads(path.read_bytes()) for path in store.blobs.folder.glob(f"sha256-{sha256(GGUF)}-partial-*")]


def test_a_download_that_ollama_began(fake: FakeRegistry, store: ModelStore) -> None:
    """Its notes have the same fields."""
    partial = store.blobs.folder / f"sha256-{sha256(GGUF)}-partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(GGUF[:120_000] + bytes(180_000))
    for number, offset, size, completed in ((0, 0, 100_000, 100_000), (1, 100_000, 200_000, 20_000)):
        note = {"N": number, "Offset": offset, "Size": size, "Completed": completed}
        Path(f"{partial}-{number}").write_text(json.dumps(note))
    asyncio.run(pulled(fake, store))
    assert_whole(fake, store)
    assert [part for digest, part in fake.blob_requests() if digest == DIGEST] == ["bytes=120000-299999"]


@pytest.mark.parametrize("note", [b"", b"{}", b'{"N":0,"Offset":5,"Size":1,"Completed":9}', b"[]", b"\xff"])
def test_a_damaged_note_begins_anew(fake: FakeRegistry, store: ModelStore, note: bytes) -> None:
    partial = store.blobs.folder / f"sha256-{sha256(GGUF)}-partial"
    partial.parent.mkdir(parents=True)
    partial.write_bytes(b"something")
    Path(f"{partial}-0").write_bytes(note)
    asyncio.run(pulled(fake, store))
    assert_whole(fake, store)


def test_two_at_once_share(fake: FakeRegistry, store: ModelStore) -> None:
    """By the locks on disk, which hold between processes as well."""
    fake.faults.seconds_per_piece = 0.01

    async def both() -> None:
        await asyncio.gather(pulled(fake, store), pulled(fake, store), pulled(fake, store))

    asyncio.run(both())
    assert_whole(fake, store)
    assert len(fake.blob_requests()) == 6 + 1 + 1, "each part of each blob once"


def test_followers_share_one_pull(fake: FakeRegistry, store: ModelStore) -> None:
    """One leaves early, one joins late and is told what was before, and a last one is alone when it leaves."""
    fake.faults.seconds_per_piece = 0.02
    transfers = SharedTransfers()
    running = asyncio.Event()

    async def work(report: object) -> None:
        running.set()
        async with Registry(name_at(fake), SETTINGS, insecure=True) as registry:
            await pull(registry, store, report)  # type: ignore[arg-type]

    async def follow(leave_after: int = 10**9) -> list[str]:
        told: list[str] = []
        stream = transfers.follow("m", work)
        async for progress in stream:
            told.append(progress.status)
            if len(told) >= leave_after:
                break
        await stream.aclose()
        return told

    async def all_of_them() -> None:
        first = asyncio.create_task(follow())
        await running.wait()
        early, late = await asyncio.gather(follow(1), follow())
        assert early == ["pulling manifest"]
        assert late[0] == "pulling manifest"
        assert (await first)[-1] == late[-1] == "success"

    asyncio.run(all_of_them())
    assert len([path for _, path, _ in fake.asked if "manifests" in path]) == 1
    assert_whole(fake, store)

    async def alone() -> None:
        store.delete(name_at(fake))
        assert await follow(1) == ["pulling manifest"]
        assert len(asyncio.all_tasks()) == 1, "the work has ended with its last follower"

    asyncio.run(alone())
    assert store.entries() == []


def test_followers_see_the_failure(fake: FakeRegistry, store: ModelStore) -> None:
    transfers = SharedTransfers()

    async def fail(report: object) -> None:
        raise RegistryError("no")

    async def follow() -> None:
        for _ in range(2):
            with pytest.raises(RegistryError, match="no"):
                async for _ in transfers.follow("m", fail):
                    pass

    asyncio.run(follow())
