"""`ollama-engine serve` as a process: what it prints, and how it stops."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny import write_tiny_llama
from tests.support.waiting import eventually

httpx = pytest.importorskip("httpx", reason="the extra `server` is not installed")
pytest.importorskip("uvicorn", reason="the extra `server` is not installed")

PATIENCE = 50
ENDLESS = {"model": "demo", "prompt": "One day", "raw": True, "options": {"num_predict": 10_000},
           "format": {"type": "array", "minItems": 100_000, "items": {"enum": [1, 2, 3]}}}  # fmt: skip


class Served:
    """A process of the program; what it writes is read in a thread, so that it never waits for us."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.told: list[str] = []
        self.address = ""
        self._listening = threading.Event()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.told.append(line)
            if found := re.match(r"listening at (http://\S+)", line):
                self.address = found[1]
                self._listening.set()
        self._listening.set()

    def ready(self) -> str:
        assert self._listening.wait(PATIENCE)
        assert self.address, self.told
        return self.address

    def stop(self, *signals: int) -> int:
        for count, number in enumerate(signals):
            if count:
                eventually(lambda: "stopping; " in self.log)
                time.sleep(1.0)  # sooner, it is the same wish
            self.process.send_signal(number)
        code = self.process.wait(PATIENCE)
        self._reader.join(PATIENCE)
        return code

    @property
    def log(self) -> str:
        return "".join(self.told)


@contextmanager
def serving(*arguments: str, **environment: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "ollama_engine.cli.main", "serve", "--port", "0", *arguments]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    served = Served(process)
    try:
        yield served
    finally:
        process.kill()
        process.wait(PATIENCE)
        served._reader.join(PATIENCE)
        assert process.stderr is not None
        process.stderr.close()


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ollama_engine.cli.main", "serve", *arguments], capture_output=True, text=True,
        timeout=PATIENCE, env=environment, check=False,
    )  # fmt: skip


def test_it_says_where_it_listens_and_logs_requests(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "tiny.q4.gguf").path
    with serving(str(path), "demo", "--models", str(tmp_path), OLLAMA_CONTEXT_LENGTH="64") as served:
        address = served.ready()
        body = {"model": "tiny.q4", "prompt": "a", "raw": True, "stream": False, "options": {"num_predict": 3}}
        assert httpx.post(f"{address}/api/generate", json=body, timeout=PATIENCE).json()["eval_count"] <= 3
        listed = httpx.get(f"{address}/api/tags").json()["models"]
        assert {model["name"] for model in listed} == {"tiny.q4:latest", "demo:latest", "demo-vision:latest"}
        (row,) = httpx.get(f"{address}/api/ps").json()["models"]
        assert (row["name"], row["context_length"]) == ("tiny.q4:latest", 64)
        httpx.post(f"{address}/api/generate", json={"model": "nope"})
        assert served.stop(signal.SIGTERM) == 0
    assert f'curl {address}/api/chat -d \'{{"model": "tiny.q4"' in served.log
    assert re.search(
        r"^\S+Z INFO POST /api/generate 200 \d+\.\d+s model=tiny.q4 prompt_tokens=\d tokens=\d",
        served.log,
        flags=re.MULTILINE,
    )
    assert re.search(r"^\S+Z INFO POST /api/generate 404 \d+\.\d+s model=nope", served.log, flags=re.MULTILINE)
    assert "Traceback" not in served.log


def answer_into(found: list[Any], address: str) -> None:
    with httpx.stream("POST", f"{address}/api/generate", json=ENDLESS, timeout=PATIENCE) as answer:
        try:
            for line in answer.iter_lines():
                found.append(json.loads(line))
        except httpx.HTTPError as error:
            found.append(error)


@pytest.mark.slow
@pytest.mark.parametrize("isolation", ["none", "process"])
def test_it_stops_within_its_time(isolation: str) -> None:
    """A running answer is told so, or cut; it does not keep the server from stopping."""
    with serving("--shutdown-timeout", "1s", "--isolation", isolation) as served:
        address, found = served.ready(), list[Any]()
        client = threading.Thread(target=answer_into, args=(found, address))
        client.start()
        eventually(lambda: found)
        assert served.stop(signal.SIGINT) == 0
        client.join(PATIENCE)
    assert "stopping; running answers have 1 s" in served.log
    assert not client.is_alive()


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once() -> None:
    with serving("--shutdown-timeout", "1h") as served:
        address, found = served.ready(), list[Any]()
        client = threading.Thread(target=answer_into, args=(found, address))
        client.start()
        eventually(lambda: found)
        assert served.stop(signal.SIGINT, signal.SIGINT) == 128 + signal.SIGINT
        client.join(PATIENCE)
    assert "second signal" in served.log


def test_a_port_that_is_taken() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("--port", str(taken.getsockname()[1]))
    assert done.returncode == 1
    assert "Address already in use; another server listens there: stop it, or choose another --port" in done.stderr


@pytest.mark.parametrize(("host", "told"), [
    ("a:b", "--host is HOST"),
    ("192.0.2.1", "--host is an address of this machine, such as 127.0.0.1, or 0.0.0.0 for all of them; 192.0.2.1:"),
    ("no-such-host.invalid", "--host is an address of this machine"),
    ("b\u00fccher..x", "or 0.0.0.0 for all of them; got 'b\u00fccher..x'"),
])  # fmt: skip
def test_a_host_that_is_none(host: str, told: str) -> None:
    done = run("--host", host, RES_OPTIONS="timeout:1 attempts:1", PYTHONUTF8="1")  # there may be no name server
    assert done.returncode == 2
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(("arguments", "environment", "told"), [
    (["--port", "x"], {}, "argument --port: expected a whole number, got 'x'"),
    (["--port", "70000"], {}, "--port is a number from 0 to 65535"),
    (["--keep-alive", "soon"], {}, "argument --keep-alive: expected a number of seconds, or a duration"),
    ([__file__], {}, "test_serve.py: not a GGUF file"),
    (["nowhere.gguf"], {}, "nowhere.gguf: No such file or directory; MODEL is a GGUF file. Models of the store"),
    (["--draft-model", "nowhere.gguf"], {}, "nowhere.gguf: No such file or directory"),
    (["--draft-model", __file__], {}, "test_serve.py: not a GGUF file"),
    (["--draft", "model"], {}, "--draft is model, which needs a --draft-model"),
    (["--device", "GPU5"], {}, "--device names 'GPU5', which does not exist; there are: "),
    (["--device", "rpc://a:99999"], {}, "argument --device: expected names that `devices` lists"),
    ([], {"OLLAMA_NUM_PARALLEL": "many"}, "OLLAMA_NUM_PARALLEL is a whole number from 1, got 'many'"),
])  # fmt: skip
def test_what_is_wrong(arguments: list[str], environment: dict[str, str], told: str) -> None:
    done = run(*arguments, **environment)
    assert done.returncode in (1, 2)
    assert told in done.stderr
    assert "Traceback" not in done.stderr


def test_a_file_that_no_engine_runs(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "head.gguf", metadata={"general.architecture": "eagle3"}).path
    done = run(str(path))
    assert done.returncode == 1
    assert f"error: {path}: architecture 'eagle3' cannot be run: it is an EAGLE-3 head" in done.stderr


def test_its_log_as_json(tmp_path: Path) -> None:
    """Every line on standard error is one object, and those of requests have their fields."""
    environment = {"OLLAMA_MODELS": str(tmp_path), "OLLAMA_ENGINE_LOG_FORMAT": "json"}
    with serving(**environment) as served:
        eventually(lambda: any('"url"' in line for line in served.told))
        told = [json.loads(line) for line in served.told]
        system = next(line for line in told if line["message"].startswith("system: "))
        address = next(line["url"] for line in told if "url" in line)
        assert system["devices"][-1]["features"]
        body = {"model": "demo", "prompt": "One day", "stream": False, "options": {"num_predict": 2}}
        assert httpx.post(f"{address}/api/generate", json=body, timeout=PATIENCE).status_code == 200
        assert served.stop(signal.SIGTERM) == 0
        told = [json.loads(line) for line in served.told]
        (request,) = (line["request"] for line in told if line["logger"].endswith("requests"))
        assert (request["method"], request["path"], request["status"], request["tokens"]) == (
            "POST", "/api/generate", 200, 2,
        )  # fmt: skip
        assert any(f" on {system['message'].removeprefix('system: ')}" in line["message"] for line in told)
