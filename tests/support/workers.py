"""Workers on loopback, for tests: the real program, in processes of their own."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import POLL_SECONDS, WAIT_SECONDS, eventually

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class RunningWorker:
    """A worker: what devices are named for an Engine, its process, and what that writes."""

    address: str
    process: subprocess.Popen[str]
    log: Path

    def kill(self) -> None:
        """End it as the system would: at once."""
        self.process.kill()
        self.process.wait(WAIT_SECONDS)

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """Have it do nothing meanwhile, with its connection open."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            if self.process.poll() is None:
                os.kill(self.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def two_workers(folder: Path) -> Iterator[tuple[RunningWorker, RunningWorker]]:
    """Two workers at once."""
    with running_worker(folder) as first, running_worker(folder) as second:
        yield first, second


@contextlib.contextmanager
def running_worker(folder: Path, memory: int | None = None) -> Iterator[RunningWorker]:
    """A worker that serves the CPU with one thread, without the process that would start it again.

    It lends `memory` bytes; None for all.
    """
    log = folder / f"worker-{time.monotonic_ns()}.log"
    with log.open("w+") as output:
        command = [sys.executable, "-m", "tests.support.worker_child", *([] if memory is None else [str(memory)])]
        process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=output, stderr=subprocess.STDOUT, text=True
        )
        try:
            yield RunningWorker(_address(process, log), process, log)
        finally:
            process.kill()
            process.wait(WAIT_SECONDS)
            assert process.stdin is not None
            process.stdin.close()


@contextlib.contextmanager
def worker_program(folder: Path, *arguments: str, port: int = 0) -> Iterator[RunningWorker]:
    """`ollama-engine worker`, with the processes that it starts."""
    log = folder / f"worker-{time.monotonic_ns()}.log"
    command = [sys.executable, "-m", "ollama_engine", "worker", "--threads", "1", "--port", str(port), *arguments]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, text=True)
        try:
            eventually(lambda: "serving at" in log.read_text() or process.poll() is not None)
            found = re.search(r"serving at (rpc://\S+)", log.read_text())
            assert found is not None, log.read_text()
            yield RunningWorker(found[1], process, log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(WAIT_SECONDS)
            finally:
                process.kill()


def _address(process: subprocess.Popen[str], log: Path) -> str:
    from ollama_engine.errors import DeviceError  # noqa: PLC0415 (after the process has started)
    from ollama_engine.ml.device.worker_address import read_address  # noqa: PLC0415
    from ollama_engine.ml.workers.worker_client import WorkerClient  # noqa: PLC0415

    end = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < end and process.poll() is None:
        found = [line for line in log.read_text().splitlines() if line.startswith("rpc://")]
        if found:
            with contextlib.suppress(DeviceError), WorkerClient(read_address(found[0])[0]):
                return found[0]
        time.sleep(POLL_SECONDS)
    raise AssertionError(f"waited {WAIT_SECONDS:g} s for a worker to start: {log.read_text()}")
