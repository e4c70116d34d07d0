"""`ollama-engine worker`: it serves, starts again, ends with its signals, and says what it does not protect."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ollama_engine import Engine, SamplingParams, demo
from ollama_engine.cli.main import main
from ollama_engine.errors import DeviceError
from ollama_engine.ml.worker_address import read_address
from ollama_engine.ml.worker_client import WorkerClient

WAIT = 120.0


@contextmanager
def program(folder: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """The program with its output in a file."""
    output = folder / "output"
    with output.open("w") as file:
        process = subprocess.Popen([sys.executable, "-m", "ollama_engine", "worker", "--threads", "1", *arguments],
                                   stdout=file, stderr=subprocess.STDOUT, text=True)  # fmt: skip
        try:
            yield process, output
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT)


def eventually(what: Callable[[], object]) -> None:
    """Wait until it is true."""
    end = time.monotonic() + WAIT
    while not what():
        assert time.monotonic() < end
        time.sleep(0.05)


def address_in(output: Path) -> str:
    eventually(lambda: "serving at" in output.read_text())
    found = re.search(r"serving at (rpc://\S+)", output.read_text())
    assert found is not None
    return found[1]


def answers(address: str) -> bool:
    try:
        with WorkerClient(read_address(address)[0]) as client:
            return client.device_count() == 1
    except DeviceError:
        return False


def children(process: subprocess.Popen[str]) -> list[int]:
    text = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    return list(map(int, text.split()))


@pytest.mark.skipif(sys.platform != "linux", reason="finds the child in /proc")
def test_it_serves_and_starts_again(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with program(tmp_path, "--port", "0") as (process, output):
        address = address_in(output)
        assert "warning" not in output.read_text()
        assert main(["devices", "--device", address]) == 0
        assert f"{address}  gpu" in capfd.readouterr().out
        with Engine(demo.path(), num_ctx=64, threads=1, devices=[address]) as engine:
            assert engine.generate("One", SamplingParams(max_tokens=2)).tokens
        (child,) = children(process)
        os.kill(child, signal.SIGKILL)
        eventually(lambda: "starting it again" in output.read_text() and answers(address))
        (child,) = children(process)
    assert process.returncode == 130
    assert not Path(f"/proc/{child}").exists()


def test_it_lends_as_much_memory_as_it_is_told(tmp_path: Path) -> None:
    with program(tmp_path, "--port", "0", "--memory", "16MiB") as (_, output):
        address = address_in(output)
        assert "16.0 MiB of " in output.read_text()
        with WorkerClient(read_address(address)[0]) as client:
            assert client.memory(0) == (16 << 20, 16 << 20)


def test_it_warns_where_others_reach_it(tmp_path: Path) -> None:
    with program(tmp_path, "--host", "0.0.0.0", "--port", "0") as (_, output):
        address_in(output)
        text = " ".join(output.read_text().split())
    assert "no password and no encryption" in text
    assert "whoever reaches rpc://0.0.0.0:" in text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--host", "example.org"], "--host is an IPv4 address of this machine"),
        (["--port", "65536"], "--port is 0 to 65535"),
        (["--threads", "0"], "--threads is 1 to 512"),
        (["--device", "CUDA9"], "--device names 'CUDA9', which does not exist; there are: CPU"),
        (["--cache", __file__], "--cache is a folder, made where it does not exist; "),
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
