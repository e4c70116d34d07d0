"""`ollama-engine worker`: it serves, starts again, ends with its signals, and says what it does not protect."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import struct
import sys
from pathlib import Path

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.cli.main import main
from ollama_engine.errors import DeviceError
from ollama_engine.ml.device.worker_address import read_address
from ollama_engine.ml.workers.worker_client import WorkerClient
from tests.support.waiting import ended, eventually
from tests.support.workers import RunningWorker, worker_program

FEW = SamplingParams(max_tokens=2, temperature=0)
ALLOC_BUFFER, GET_TENSOR = 0, 8
on_linux = pytest.mark.skipif(sys.platform != "linux", reason="finds processes in /proc")


def answers(address: str) -> bool:
    try:
        with WorkerClient(read_address(address)[0]) as client:
            return client.device_count() == 1
    except DeviceError:
        return False


def children(worker: RunningWorker) -> list[int]:
    """Of all threads: which one starts a process is the worker's business."""
    found = []
    for path in Path(f"/proc/{worker.process.pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            found += [int(child) for child in path.read_text().split()]
    return found


def engine(address: str) -> Engine:
    return Engine(demo.path(), num_ctx=64, threads=1, devices=[address])


def test_it_serves(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with worker_program(tmp_path) as worker:
        assert "warning" not in worker.log.read_text()
        assert main(["devices", "--device", worker.address]) == 0
        assert f"{worker.address}  gpu" in capfd.readouterr().out
        with engine(worker.address) as loaded:
            assert loaded.generate("One", FEW).tokens
    assert worker.process.returncode == 130


@on_linux
def test_programs_have_processes_of_their_own(tmp_path: Path) -> None:
    with worker_program(tmp_path) as worker:
        with engine(worker.address) as first, engine(worker.address) as second:
            assert first.generate("One", FEW).tokens == second.generate("One", FEW).tokens
            one, other = children(worker)
            os.kill(other, signal.SIGKILL)
            answered = [ended(lambda each=each: each.generate("One", FEW)) for each in (first, second)]  # type: ignore[misc]
            assert sorted(error is None for error in answered) == [False, True]
            told = re.compile(r"the process that served 127\.0\.0\.1:\d+ was ended by SIGKILL; the system may have")
            eventually(lambda: told.search(worker.log.read_text()))
        with engine(worker.address) as third:
            assert third.generate("One", FEW).tokens
        eventually(lambda: len(children(worker)) == 1)
        (left,) = children(worker)
    assert not any(Path(f"/proc/{process}").exists() for process in (one, other, left))


@on_linux
def test_a_process_that_ends_while_nobody_uses_it(tmp_path: Path) -> None:
    with worker_program(tmp_path) as worker:
        (child,) = children(worker)
        os.kill(child, signal.SIGKILL)
        eventually(lambda: "that waited for a program was ended by SIGKILL" in worker.log.read_text())
        assert answers(worker.address)


def test_a_crash_leaves_its_reason(tmp_path: Path) -> None:
    """What ggml cannot take ends the process that served it; the worker's log says what that was."""
    with worker_program(tmp_path) as worker:
        place = read_address(worker.address)[0]
        with WorkerClient(place) as client, socket.socket(fileno=client.detach()) as raw:
            raw.sendall(struct.pack("<BQIQ", ALLOC_BUFFER, 12, 0, 4096))
            _, buffer, _ = struct.unpack("<QQQ", raw.recv(24, socket.MSG_WAITALL))
            tensor = struct.pack("<QIQ4I4II16ii10QQQQ64s4x", 1, 0, buffer, 4, 1, 1, 1, 4, 16, 16, 16, 0, *[0] * 16, 0,
                                 *[0] * 10, 0, 0, buffer - (1 << 20), b"wild")  # fmt: skip
            raw.sendall(struct.pack("<BQ", GET_TENSOR, len(tensor) + 16) + tensor + struct.pack("<QQ", 0, 16))
            assert raw.recv(1) == b""
        eventually(lambda: "was ended by SIGABRT" in worker.log.read_text())
        log = worker.log.read_text()
        assert "GGML_ASSERT(tensor->data >= buffer_start" in log
        assert re.search(r"a program has sent .*, or a device has failed", log)
        assert answers(worker.address)


def test_it_lends_as_much_memory_as_it_is_told(tmp_path: Path) -> None:
    with worker_program(tmp_path, "--memory", "16MiB") as worker:
        assert "16.0 MiB of " in worker.log.read_text()
        with WorkerClient(read_address(worker.address)[0]) as client:
            assert client.memory(0) == (16 << 20, 16 << 20)


def test_a_device_that_the_worker_does_not_have(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with worker_program(tmp_path) as worker:
        told = f"--device names '{worker.address}/1', which the worker does not have; it has: {worker.address}"
        for command in ("devices", "doctor"):
            assert main([command, "--device", f"{worker.address}/1"]) == 2
            assert told in capfd.readouterr().err


def test_it_warns_where_others_reach_it(tmp_path: Path) -> None:
    with worker_program(tmp_path, "--host", "0.0.0.0") as worker:
        text = " ".join(worker.log.read_text().split())
    assert "no password and no encryption" in text
    assert "every program that reaches rpc://0.0.0.0:" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "example.org"], "--host is an IPv4 address of this machine"),
        (["--port", "65536"], "--port is 0 to 65535"),
        (["--threads", "0"], "--threads is 1 to 512"),
        (["--device", "CUDA9"], "--device names 'CUDA9', which does not exist; there are: CPU"),
        (["--memory", "1"], "--memory is at least 1.0 MiB, got 1 bytes"),
        (["--cache", __file__], "--cache is a folder, made where it does not exist; "),
        (["--cache", f"{__file__}/below", "--port", "0"], "below' cannot be made or written: Not a directory"),
        (["--host", "192.0.2.1", "--port", "0"], "cannot listen at rpc://192.0.2.1:0"),
    ],
)
def test_refusals(arguments: list[str], told: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["worker", *arguments]) != 0
    assert told in capfd.readouterr().err


@pytest.mark.parametrize("size", ["0", "1GiB,2GiB", "much"])
def test_sizes_that_are_none(size: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["worker", "--memory", size])
    assert f"--memory: expected a size above 0 such as 8GiB, got '{size}'" in capfd.readouterr().err


def test_a_port_that_is_taken(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["worker", "--port", str(taken.getsockname()[1])]) == 1
    told = capfd.readouterr().err
    assert "Address already in use; give an address of this machine with --host, and a port that is free" in told
