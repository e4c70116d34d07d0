"""`ollama-engine serve --replicas` in a process of its own, and the processes of its replicas."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

import pytest

from tests.ray.ray_environment import PATIENCE, command, ray_environment

MARKS = [
    pytest.mark.slow,
    pytest.mark.timing("Ray's processes wait for each other within limits of their own"),
    pytest.mark.timeout(1200),  # Ray starts and ends a cluster
]
"""Of a module whose tests have a server with replicas."""


@dataclass(frozen=True)
class RunningServer:
    """A server with replicas.

    Attributes:
        url: where it listens.
        process: the program.
        variables: its environment variables.
    """

    url: str
    process: subprocess.Popen[str]
    variables: dict[str, str]

    def replicas(self) -> list[int]:
        """Process ids of its engines."""
        parents = dict(_parents())
        return [pid for pid in parents if _is_engine(pid) and self.process.pid in _ancestors(pid, parents)]

    def cluster(self) -> str:
        """HOST:PORT of its Ray cluster."""
        parents = dict(_parents())
        commands = (command(pid) for pid in parents if self.process.pid in _ancestors(pid, parents))
        return next(found[1] for text in commands if (found := re.search(r"--gcs-address=(\S+)", text)))


@contextmanager
def serving(*arguments: str) -> Iterator[RunningServer]:
    """The program with these arguments, from when it listens until the block ends."""
    command = [sys.executable, "-m", "ollama_engine", "serve", "--port", "0", *arguments]
    with ray_environment() as variables, running(command, variables) as found:
        yield found


@contextmanager
def running(command: list[str], variables: dict[str, str]) -> Iterator[RunningServer]:
    """A program that says "listening at URL", from then until the block ends; SIGTERM ends it."""
    lines: SimpleQueue[str | None] = SimpleQueue()
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL, env=variables
    )

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.put(line)
        lines.put(None)

    reading = Thread(target=read, daemon=True)
    reading.start()
    try:
        yield RunningServer(_url(lines), process, variables)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        reading.join(PATIENCE)
        assert process.stderr is not None
        process.stderr.close()


def _url(lines: SimpleQueue[str | None]) -> str:
    """The address in what the program says. Raises AssertionError where it ends, or says nothing for long."""
    said = ""
    while True:
        try:
            line = lines.get(timeout=PATIENCE)
        except Empty:
            raise AssertionError(f"the server does not listen: {said}") from None
        assert line is not None, said
        said += line
        if found := re.match(r"listening at (\S+)", line):
            return found[1]


def _parents() -> Iterator[tuple[int, int]]:
    """Every process, with its parent."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                yield int(entry.name), int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:  # it has ended
                continue


def _ancestors(pid: int, parents: dict[int, int]) -> Iterator[int]:
    while pid in parents:
        pid = parents[pid]
        yield pid


def _is_engine(pid: int) -> bool:
    try:
        return b"ServeReplica:ollama-engine:engines" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
