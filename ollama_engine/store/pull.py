"""Models between a registry and the store."""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections.abc import AsyncIterator, Callable, Sequence

from ollama_engine.errors import ModelFormatError, RegistryError
from ollama_engine.size_texts import decimal_size
from ollama_engine.store.blobs import PARTIAL, damaged
from ollama_engine.store.download import download_blob
from ollama_engine.store.manifest import Layer, Manifest
from ollama_engine.store.model_store import ModelStore
from ollama_engine.store.registry import Registry, TransientError
from ollama_engine.store.transfers import Meter, Report, TransferProgress, in_thread, run_together

__all__ = ["fetch", "pull", "push"]

TRIES = 3
"""How often to begin anew where another process deletes a blob between its download and the manifest."""

SEND_BYTES = 1 << 20


async def pull(registry: Registry, store: ModelStore, report: Report) -> None:
    """Have a registry's model in the store, under the same name.

    Stored blobs are not read again, interrupted downloads go on, and every blob's digest is checked before it gets its
    name. Raises RegistryError, ModelNotFoundError, and OSError (ENOSPC).
    """
    report(TransferProgress("pulling manifest"))
    manifest = await registry.manifest()
    await fetch(registry, store, manifest.blobs, lambda: manifest, report)


async def fetch(
    registry: Registry, store: ModelStore, layers: Sequence[Layer], manifest: Callable[[], Manifest], report: Report
) -> None:
    """Have these blobs in the store, and the model whose manifest can be made then. Raises as `pull` does."""
    for left in reversed(range(TRIES)):
        streams = asyncio.Semaphore(registry.settings.streams)
        _check_room(store, layers)
        await run_together(
            download_blob(registry, layer, store.blobs, Meter(report, "pulling", layer.digest, layer.size), streams)
            for layer in layers
        )
        report(TransferProgress("verifying sha256 digest"))  # done for each as it came; clients know the line
        report(TransferProgress("writing manifest"))
        try:
            await in_thread(lambda: store.put(registry.name, manifest()))
            break
        except ModelFormatError:
            if not left or all(store.blobs.has(layer) for layer in layers):
                raise
    report(TransferProgress("success"))


def _check_room(store: ModelStore, layers: Sequence[Layer]) -> None:
    missing = [layer for layer in layers if not store.blobs.has(layer)]
    store.blobs.folder.mkdir(parents=True, exist_ok=True)
    needed = sum(max(0, layer.size - _used_blocks(store, layer)) for layer in missing)
    free = shutil.disk_usage(store.blobs.folder).free
    if needed > free:
        # What is missing is told, too: by their rounded sizes, 42.4 GB and 42.1 GB are alike.
        sizes = map(decimal_size, (needed, free, needed - free))
        what = "no room: the model takes {} more, and {} are free; {} more must be".format(*sizes)
        raise OSError(errno.ENOSPC, what, str(store.folder))


def _used_blocks(store: ModelStore, layer: Layer) -> int:
    """Bytes on disk of what is there of a blob, whose file is sparse."""
    try:
        return os.stat(f"{store.blobs.path(layer.digest)}{PARTIAL}").st_blocks * 512
    except OSError:
        return 0


async def push(registry: Registry, store: ModelStore, report: Report) -> None:
    """Publish a model of the store. Blobs that the registry has are not sent again.

    Raises ModelNotFoundError for a model that is not in the store, ModelFormatError for a damaged blob, RegistryError.
    """
    report(TransferProgress("retrieving manifest"))
    entry = await in_thread(store.entry, registry.name)
    for layer in entry.manifest.blobs:
        if not store.blobs.has(layer):
            raise damaged(store.blobs, layer)
    streams = asyncio.Semaphore(registry.settings.streams)
    await run_together(
        _push_blob(registry, layer, store, Meter(report, "pushing", layer.digest, layer.size), streams)
        for layer in entry.manifest.blobs
    )
    report(TransferProgress("pushing manifest"))
    await registry.put_manifest(entry.manifest)
    report(TransferProgress("success"))


async def _push_blob(
    registry: Registry, layer: Layer, store: ModelStore, meter: Meter, streams: asyncio.Semaphore
) -> None:
    """Send one blob, from the beginning after each failure."""
    async with streams:
        meter.show(0)
        failures = 0
        while not await registry.has_blob(layer):
            try:
                await _upload(registry, layer, store, meter)
                break
            except TransientError as error:
                failures += 1
                if failures > registry.settings.retries:
                    raise RegistryError(f"{registry.name.host}: {error}") from error
                await asyncio.sleep(registry.settings.wait(failures))
        meter.show(layer.size)


async def _upload(registry: Registry, layer: Layer, store: ModelStore, meter: Meter) -> None:
    async def data() -> AsyncIterator[bytes]:
        meter.show(0)
        with open(store.blobs.path(layer.digest), "rb", buffering=0) as file:
            while piece := await in_thread(file.read, SEND_BYTES):
                yield piece
                meter.add(len(piece))

    address = await registry.begin_upload()
    known = {"Content-Type": "application/octet-stream", "Content-Length": str(layer.size)}
    known["Content-Range"] = f"0-{max(0, layer.size - 1)}"
    async with registry.stream("PATCH", address, headers=known, body=data) as response:
        await registry.read(response)
        address = registry.location(response)
    joint = "&" if "?" in address else "?"
    await registry.ask("PUT", f"{address}{joint}digest={layer.digest}", content=b"")
