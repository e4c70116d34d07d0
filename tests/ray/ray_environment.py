"""Ray for a test: its files in a folder that is deleted, and no process of it left over."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

PATIENCE = 400


@contextmanager
def ray_environment() -> Iterator[dict[str, str]]:
    """Environment variables for programs that start Ray.

    Ray keeps its files in a new folder with a short path, as its sockets need, reports nothing to its makers, and ends
    no process for the memory that others take. Its clusters have a token of their own: Ray would leave one in the
    user's home. Raises AssertionError where PATIENCE after the block a process with
    these variables still runs; none is left in the end.
    """
    folder = tempfile.mkdtemp(prefix="ray")
    try:
        yield {
            **os.environ,
            "RAY_TMPDIR": folder,
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_memory_monitor_refresh_ms": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        wait_for_end(folder)
    finally:
        for pid in processes(folder):
            kill(pid)
        shutil.rmtree(folder, ignore_errors=True)


def wait_for_end(folder: str) -> None:
    """Return when no process has this folder for Ray's files. Raises AssertionError after PATIENCE."""
    until = time.monotonic() + PATIENCE
    while left := processes(folder):
        assert time.monotonic() < until, {pid: command(pid) for pid in left}
        time.sleep(0.1)


def processes(folder: str) -> list[int]:
    """Processes that have this folder for Ray's files."""
    mark = f"RAY_TMPDIR={folder}\0".encode()
    found = []
    for entry in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or is another user's
            if entry.name.isdigit() and mark in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def command(pid: int) -> str:
    """What a process is started with, or calls itself."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return "ended"


def kill(pid: int) -> None:
    """End a process at once, as the system does where memory is short; nothing where it has ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
