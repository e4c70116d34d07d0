"""Keeps measured times of kernels in a file of the user's cache folder, one for each CPU, version and thread count.

The file is JSON with a checksum of what it says. It is replaced as a whole, so a reader in another process sees the old
file or the new one; one process at a time adds to it. A file that is damaged, or about something else, is refused, and
written anew by the next load that measures.
"""

from __future__ import annotations

import errno
import json
import math
import os
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ollama_engine import user_cache
from ollama_engine.file_lock import held
from ollama_engine.ml.device.cpu_facts import cpu_identity
from ollama_engine.ml.device.device import ggml_version
from ollama_engine.ml.ops import small_batch
from ollama_engine.ml.ops.small_batch import SMALL_BATCH_VARIANTS, cpu_traits, small_batch_instructions
from ollama_engine.ml.weights.kernel_timings import GGML, REPACKED, Timings
from ollama_engine.ml.weights.kernel_variants import FEW_ROWS, FewRows
from ollama_engine.new_file import write_new_file

__all__ = ["TimingsFile", "checksum"]

FORMAT = 1
LOCK_SECONDS = 0.3
"""How long a load waits for another one to write its timings."""
MOST_BYTES = 1 << 20
"""No file of timings is longer."""


@dataclass(frozen=True)
class TimingsFile:
    """The timings of this CPU and build for one number of threads."""

    folder: Path
    threads: int
    version: str
    """Of this package."""

    @classmethod
    def of_user(cls, threads: int, version: str) -> TimingsFile:
        """Those in the user's cache folder. Raises OSError where the user has no home."""
        return cls(user_cache.cache_folder(), threads, version)

    @property
    def about(self) -> dict[str, Any]:
        """What decides whether timings are valid. Builds with other kernels may have the same version."""
        return {
            "format": FORMAT, "cpu": cpu_identity(), "traits": sorted(cpu_traits()), "version": self.version,
            "ggml": ggml_version(), "built": int(os.stat(small_batch.__file__).st_mtime), "threads": self.threads,
        }  # fmt: skip

    @property
    def path(self) -> Path:
        return self.folder / f"kernels-{checksum(self.about):08x}.json"

    def read(self) -> Timings:
        """The timings; nothing where there is no file. Raises ValueError for a damaged file, OSError."""
        try:
            with open(self.path, "rb") as file:
                raw = file.read(MOST_BYTES)
        except FileNotFoundError:
            return {}
        try:
            content = json.loads(raw)
            if content["about"] != self.about:
                raise ValueError("it is about another CPU, version or number of threads")
            if content["checksum"] != checksum(content["timings"]):
                raise ValueError("its checksum does not fit")
            return {_question(item): _seconds(item["seconds"]) for item in content["timings"]}
        except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
            raise ValueError(f"{self.path} is damaged: {error!r:.200}") from None

    def write(self, timings: Timings) -> None:
        """Replace the file. Raises OSError."""
        said = [{**kind._asdict(), "seconds": dict(seconds)} for kind, seconds in timings.items()]
        content = {"about": self.about, "timings": said, "checksum": checksum(said)}
        raw = json.dumps(content, indent=1).encode()
        self.folder.mkdir(parents=True, exist_ok=True)
        write_new_file(self.path, len(raw), lambda file: file.write(raw), overwrite=True)

    def add(self, measured: Timings) -> Timings:
        """Write these besides the timings that are kept, which win, and return all.

        Waits for `add` of other processes; of one that is stopped, not for long, and keeps nothing then. Drops the
        timings of a damaged file. Raises OSError.
        """
        with ExitStack() as lock:
            keeps = True
            try:
                lock.enter_context(held(self.path.with_suffix(".lock"), LOCK_SECONDS))
            except TimeoutError:
                keeps = False
            except OSError:
                pass  # a file system without locks: of two that write at once one may be lost
            try:
                kept = self.read()
            except ValueError:
                kept = {}
            timings = {**measured, **kept}
            if keeps:
                self.write(timings)
        return timings

    def check_writable(self) -> None:
        """Raise OSError where `write` would, before anything is measured."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if not os.access(self.folder, os.W_OK):
            raise PermissionError(errno.EACCES, "cannot be written", str(self.folder))


def checksum(value: Any) -> int:
    """CRC-32 of a JSON value, which finds damage by chance."""
    return zlib.crc32(json.dumps(value, sort_keys=True, separators=(",", ":")).encode())


def _question(item: Any) -> FewRows:
    dtype, rows, experts = item["dtype"], item["rows"], item["experts"]
    if not small_batch_instructions(dtype) or rows not in FEW_ROWS or not isinstance(experts, bool):
        raise ValueError(f"{dtype!r:.40} with {rows!r:.40} rows is nothing that is measured")
    return FewRows(dtype, rows, experts)


def _seconds(item: Any) -> dict[str, float]:
    times = {str(name): float(seconds) for name, seconds in item.items()}
    if not times or not times.keys() <= {*SMALL_BATCH_VARIANTS, GGML, REPACKED}:
        raise ValueError(f"it names unknown kernels: {list(times)!r:.100}")
    if not all(0 < seconds < math.inf for seconds in times.values()):
        raise ValueError("its times are no positive numbers")
    return times
