"""BlobStore: files named by the SHA-256 of what they hold."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from ollama_engine.closing import Closing
from ollama_engine.errors import ModelFormatError
from ollama_engine.file_lock import held, try_lock, unlock
from ollama_engine.new_file import about, flush_folder
from ollama_engine.store.manifest import Layer, hex_of

__all__ = ["BlobStore", "BlobWriter", "damaged", "hash_file"]

READ_BYTES = 1 << 20
TEMPORARY = ".part"
PARTIAL = "-partial"

Progress = Callable[[int, int], None]
"""Called with (bytes done, bytes in all)."""


class BlobStore:
    """The folder `blobs` of a store.

    A blob appears under its name when it is whole and flushed to the disk. `claim` and `discard` exclude each other, so
    that a blob that a client was just told of is not deleted before it is used.
    """

    def __init__(self, root: Path) -> None:
        self.folder = root / "blobs"
        self.lock_folder = root / ".locks"
        self.lock_path = self.lock_folder / "store"
        self.claim_folder = root / ".claims"

    def path(self, digest: str) -> Path:
        """Where a blob is or would be. Raises ModelFormatError for what is no digest."""
        return self.folder / f"sha256-{hex_of(digest)}"

    def has(self, layer: Layer) -> bool:
        """Whether the blob is there, with the size that it should have."""
        try:
            return self.path(layer.digest).stat().st_size == layer.size
        except OSError:
            return False

    def claim(self, digest: str) -> int | None:
        """The size of a blob that is about to be used in a new model, or None where there is none.

        `discard` spares it for some time. An empty file says so, and not the blob's own time: engines that have mapped
        the blob look at that, and a new one means that it has changed.
        """
        path = self.path(digest)
        if not path.exists():  # asked first: a store that cannot be written is not locked in vain
            return None
        with held(self.lock_path):
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                return None
            self.claim_folder.mkdir(parents=True, exist_ok=True)
            (self.claim_folder / path.name).touch()
            return size

    def wanted_at(self, path: Path) -> float:
        """When a blob was written, or claimed last. Raises FileNotFoundError."""
        written = path.stat().st_mtime
        try:
            return max(written, (self.claim_folder / path.name).stat().st_mtime)
        except FileNotFoundError:
            return written

    def forget_claims(self, older: float) -> None:
        """Remove claims of more than so many seconds ago."""
        for path in self.claim_folder.glob("*"):
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime >= older:
                    path.unlink()
        with suppress(OSError):  # others are there, or none ever was
            self.claim_folder.rmdir()

    def writer(self) -> BlobWriter:
        """A new blob, to be written piece by piece: a context manager."""
        self.folder.mkdir(parents=True, exist_ok=True)
        return BlobWriter(self)

    def write(self, data: bytes) -> Layer:
        """Store some bytes. The layer has no media type yet."""
        with self.writer() as writer:
            writer.write(data)
            return Layer("", writer.commit(), len(data))

    def adopt(self, source: Path, progress: Progress | None = None) -> str:
        """Store a copy of a file. Returns the digest."""
        total, done = source.stat().st_size, 0
        with open(source, "rb") as file, self.writer() as writer:
            while data := file.read(READ_BYTES):
                writer.write(data)
                done += len(data)
                if progress is not None:
                    progress(done, total)
            return writer.commit()

    def take(self, path: Path, kind: str) -> Layer:
        """Make a whole file in this folder, which is flushed to the disk, a blob: it gets its name."""
        digest, size = hash_file(path), path.stat().st_size
        os.replace(path, self.path(digest))
        flush_folder(self.folder)
        return Layer.of(kind, digest, size)

    def check(self, layer: Layer, progress: Progress | None = None) -> None:
        """Read the whole blob. Raises ModelFormatError, which names the digest, where it is missing or damaged."""
        if not self.has(layer):
            raise damaged(self, layer)
        if hash_file(self.path(layer.digest), progress) != layer.digest:
            raise ModelFormatError(
                f"blob {layer.digest} is damaged: its content has another digest; remove {self.path(layer.digest)} and "
                "pull or create the model again"
            )

    def all(self) -> Iterator[Path]:
        """Every whole blob's file."""
        for entry in self._entries():
            with suppress(ModelFormatError):
                if hex_of(entry.name):
                    yield entry

    def leftovers(self) -> Iterator[Path]:
        """Files of downloads and writes that were interrupted, Ollama's as well."""
        whole = set(self.all())
        return (entry for entry in self._entries() if entry not in whole and _is_leftover(entry.name))

    def download_lock(self, digest: str) -> Path:
        """The lock of who downloads a blob."""
        return self.lock_folder / f"sha256-{hex_of(digest)}"

    def is_downloading(self, leftover: Path) -> bool:
        """Whether a file of `leftovers` belongs to a download that is under way, in any process."""
        lock = self.lock_folder / leftover.name.partition(PARTIAL)[0]
        if PARTIAL not in leftover.name or not lock.exists():
            return False
        handle = try_lock(lock)
        if handle is not None:
            unlock(lock, handle)
        return handle is None

    def _entries(self) -> list[Path]:
        try:
            return sorted(entry for entry in self.folder.iterdir() if entry.is_file())
        except FileNotFoundError:
            return []


def _is_leftover(name: str) -> bool:
    """Ollama's temporary files are `sha256-` and digits, those of downloads `...-partial` and `...-partial-N`."""
    return name.startswith("sha256-") or (name.startswith(".") and name.endswith(TEMPORARY))


class BlobWriter(Closing):
    """A blob that is being written. Left without `commit`, it leaves nothing behind."""

    def __init__(self, blobs: BlobStore) -> None:
        self._blobs = blobs
        self._hash = sha256()
        self._path = blobs.folder / f".{os.urandom(8).hex()}{TEMPORARY}"
        self._file = open(self._path, "xb")  # noqa: SIM115 (closed by `commit` or `close`)

    def write(self, data: bytes) -> None:
        self._hash.update(data)
        with about(self._blobs.folder):
            self._file.write(data)

    def commit(self, expected: str | None = None) -> str:
        """Flush, and give the blob its name, which is returned. Raises ModelFormatError where it is not `expected`."""
        digest = f"sha256:{self._hash.hexdigest()}"
        if expected is not None and hex_of(expected) != hex_of(digest):
            raise ModelFormatError(f'digest mismatch, expected "{expected}", got "{digest}"')
        with about(self._blobs.folder):
            self._file.flush()
            os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._path, self._blobs.path(digest))
        flush_folder(self._blobs.folder)
        return digest

    def close(self) -> None:
        """Delete what is not committed."""
        with suppress(OSError):  # a full disk, where it has data that was not flushed yet
            self._file.close()
        self._path.unlink(missing_ok=True)


def hash_file(path: Path, progress: Progress | None = None) -> str:
    """`sha256:...` of a file."""
    sha, done, total = sha256(), 0, path.stat().st_size
    with open(path, "rb", buffering=0) as file:
        while data := file.read(READ_BYTES):
            sha.update(data)
            done += len(data)
            if progress is not None:
                progress(done, total)
    return f"sha256:{sha.hexdigest()}"


def damaged(blobs: BlobStore, layer: Layer) -> ModelFormatError:
    """The error for a blob that `has` denies: it is missing, unreadable, or of another size."""
    try:
        size = blobs.path(layer.digest).stat().st_size
    except OSError as error:
        why = "is missing" if error.errno == errno.ENOENT else f"cannot be read ({error.strerror})"
        return ModelFormatError(f"blob {layer.digest} {why}; pull or create the model again")
    return ModelFormatError(
        f"blob {layer.digest} is damaged: it has {size} bytes, expected {layer.size}; pull or create the model again"
    )
