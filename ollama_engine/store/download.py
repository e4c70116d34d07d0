"""One blob from a registry to the disk: in parts, side by side, resumed after whatever happened before.

The parts are kept as Ollama keeps them: the data in `<blob>-partial`, and in `<blob>-partial-<N>` how much of part N is
there. So each goes on with what the other has begun.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from ollama_engine.errors import RegistryError
from ollama_engine.file_lock import try_lock, unlock
from ollama_engine.new_file import about, flush_folder
from ollama_engine.store.blobs import PARTIAL, TEMPORARY, BlobStore, hash_file
from ollama_engine.store.manifest import Layer
from ollama_engine.store.registry import Registry, TransientError
from ollama_engine.store.transfers import Meter, in_thread, run_together

__all__ = ["download_blob"]

WRITE_BYTES = 1 << 20
WRITE_SECONDS = 0.2
MAX_PARTS = 64
POLL_SECONDS = 0.1
"""How often to look whether another process has finished a blob."""


class _NoRangesError(Exception):
    """The registry sends a whole blob, where a part was asked for."""


@dataclass
class _Part:
    """Bytes of a blob that one connection reads; the first `completed` of them are in the file."""

    number: int
    offset: int
    size: int
    completed: int = 0

    @property
    def missing(self) -> int:
        return self.size - self.completed


async def download_blob(
    registry: Registry, layer: Layer, blobs: BlobStore, meter: Meter, streams: asyncio.Semaphore
) -> None:
    """Have a blob in the store, with the digest that it should have.

    Where another task or process downloads it already, this waits for it. Raises RegistryError, ModelNotFoundError,
    OSError.
    """
    if await _is_there(layer, blobs, meter):
        return
    async with _only_one(layer, blobs, meter):
        if await _is_there(layer, blobs, meter):
            return
        partial = _Partial(layer, blobs)
        try:
            await _fetch(registry, partial, meter, streams)
        except _NoRangesError:
            partial.forget()
            partial.parts = [_Part(0, 0, layer.size)]
            await _fetch(registry, partial, meter, streams)
        await in_thread(partial.finish, registry.name.host)


async def _is_there(layer: Layer, blobs: BlobStore, meter: Meter) -> bool:
    there = blobs.has(layer) and await asyncio.to_thread(blobs.claim, layer.digest) == layer.size
    if there:
        meter.show(layer.size)
    return there


@asynccontextmanager
async def _only_one(layer: Layer, blobs: BlobStore, meter: Meter) -> AsyncIterator[None]:
    """Wait until no other download of this blob goes on; meanwhile the other one's progress is shown."""
    path = blobs.download_lock(layer.digest)
    while (handle := try_lock(path)) is None:
        meter.show(sum(part.completed for part in _saved_parts(blobs.path(layer.digest))))
        await asyncio.sleep(POLL_SECONDS)
    try:
        yield
    finally:
        unlock(path, handle)


class _Partial:
    """A blob's file while it is incomplete."""

    def __init__(self, layer: Layer, blobs: BlobStore) -> None:
        self.layer = layer
        self.target = blobs.path(layer.digest)
        self.path = Path(f"{self.target}{PARTIAL}")
        self.parts = list(_saved_parts(self.target)) if self.path.exists() else []
        if not self._are_whole():
            self.forget()
            self.parts = []
        self.path.parent.mkdir(parents=True, exist_ok=True)

    def _are_whole(self) -> bool:
        """Whether the saved parts are all of the blob, one behind the other."""
        at = 0
        for part in self.parts:
            if part.offset != at or not 0 <= part.completed <= part.size:
                return False
            at += part.size
        return at == self.layer.size

    def divide(self, part_bytes: int) -> None:
        """Make the parts of a blob of which nothing is there."""
        size = max(part_bytes, -(-self.layer.size // MAX_PARTS), 1)
        starts = range(0, self.layer.size, size)
        self.parts = [_Part(n, start, min(size, self.layer.size - start)) for n, start in enumerate(starts)]

    def save(self, part: _Part) -> None:
        """Note on disk how much of a part is there. The old note stays whole until the new one is."""
        known = {"N": part.number, "Offset": part.offset, "Size": part.size, "Completed": part.completed}
        new = self.path.with_name(f".{self.path.name}-{part.number}{TEMPORARY}")
        new.write_text(json.dumps(known))
        os.replace(new, _part_path(self.target, part.number))

    def finish(self, host: str) -> None:
        """Check the digest, and give the blob its name. Raises RegistryError for other content, which is removed."""
        digest = hash_file(self.path)
        if digest != self.layer.digest:
            self.forget()
            raise RegistryError(
                f"{host} sent something else than blob {self.layer.digest}: digest mismatch, got {digest}; it was "
                "removed, try again"
            )
        with open(self.path, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(self.path, self.target)
        flush_folder(self.target.parent)
        self.forget()

    def forget(self) -> None:
        """Remove all that is there."""
        for path in (self.path, *self.path.parent.glob(f"*{self.path.name}-*")):
            path.unlink(missing_ok=True)


def _part_path(target: Path, number: int) -> Path:
    return Path(f"{target}{PARTIAL}-{number}")


def _saved_parts(target: Path) -> list[_Part]:
    """The parts that are noted on disk, in order; those whose note cannot be read are missing."""
    return sorted(_read_parts(target), key=lambda part: part.offset)


def _read_parts(target: Path) -> Iterator[_Part]:
    for path in target.parent.glob(f"{target.name}{PARTIAL}-*"):
        with suppress(ValueError, KeyError, TypeError, OSError):
            known = json.loads(path.read_bytes())
            yield _Part(*(int(known[key]) for key in ("N", "Offset", "Size", "Completed")))


async def _fetch(registry: Registry, partial: _Partial, meter: Meter, streams: asyncio.Semaphore) -> None:
    """Fill the file. Raises _NoRangesError where parts cannot be had."""
    if not partial.parts:
        partial.divide(registry.settings.part_bytes)
    for part in partial.parts:
        partial.save(part)
    meter.show(sum(part.completed for part in partial.parts))
    handle = os.open(partial.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        os.ftruncate(handle, partial.layer.size)
        todo = [part for part in partial.parts if part.missing]
        await run_together(_fetch_part(registry, partial, part, handle, meter, streams) for part in todo)
    finally:
        os.close(handle)


class _PartFile:
    """Collects what comes for a part, and writes a MiB, or what has come in some time, at once."""

    def __init__(self, partial: _Partial, part: _Part, handle: int, meter: Meter) -> None:
        self._partial, self._part, self._handle, self._meter = partial, part, handle, meter
        self._flushed = time.monotonic()
        self.held = bytearray()

    async def write(self, data: bytes) -> None:
        self.held += data
        if len(self.held) >= WRITE_BYTES or time.monotonic() - self._flushed > WRITE_SECONDS:
            await self.flush()

    async def flush(self) -> None:
        before = self._part.completed
        try:
            await in_thread(self._write)
        finally:
            self._meter.add(self._part.completed - before)

    def _write(self) -> None:
        part, data = self._part, bytes(self.held)
        self.held.clear()
        while data:
            with about(self._partial.path.parent):
                written = os.pwrite(self._handle, data, part.offset + part.completed)
            part.completed += written
            data = data[written:]
        self._partial.save(part)
        self._flushed = time.monotonic()


async def _fetch_part(
    registry: Registry, partial: _Partial, part: _Part, handle: int, meter: Meter, streams: asyncio.Semaphore
) -> None:
    """Fill one part, connecting anew after failures."""
    failures, before = 0, part.completed
    async with streams:
        while part.missing:
            try:
                await _read_part(registry, partial, part, handle, meter)
            except TransientError as error:
                failures = failures + 1 if part.completed == before else 1
                before = part.completed
                if failures > registry.settings.retries:
                    raise RegistryError(f"{registry.name.host}: {error}") from error
                await asyncio.sleep(registry.settings.wait(failures))


async def _read_part(registry: Registry, partial: _Partial, part: _Part, handle: int, meter: Meter) -> None:
    """Read what is missing of a part, as far as one connection gets. Raises TransientError where it ends early."""
    begin, end = part.offset + part.completed, part.offset + part.size
    headers = {"Range": f"bytes={begin}-{end - 1}", "Accept-Encoding": "identity"}
    async with registry.stream("GET", registry.blob_url(partial.layer), headers=headers) as response:
        if response.status_code != 206 and (begin, end) != (0, partial.layer.size):
            raise _NoRangesError
        if response.status_code == 206 and not response.headers.get("Content-Range", "").startswith(f"bytes {begin}-"):
            raise RegistryError(f"{registry.name.host} sent other bytes than {headers['Range']}")
        file = _PartFile(partial, part, handle, meter)
        try:
            async for data in response.aiter_raw():
                if len(data) + len(file.held) > part.missing:
                    raise RegistryError(f"{registry.name.host} sent more of blob {partial.layer.digest} than it has")
                await file.write(data)
        finally:
            await file.flush()
    if part.missing:
        raise TransientError(f"the connection ended {part.missing} bytes early")
