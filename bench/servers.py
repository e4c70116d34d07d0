"""Servers that run beside a benchmark: this package's and llama.cpp's, with the same slots, context and threads."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peer_tools import has_tool, our_program, tool

NAMES = ("ollama_engine", "llama-server")


@dataclass(frozen=True)
class Setting:
    """How a server is started: `slots` requests side by side, each with a context of `num_ctx` tokens."""

    model: Path
    slots: int
    num_ctx: int
    threads: int
    options: Sequence[str] = ()
    """More arguments of its command."""


def missing(name: str) -> str:
    """Why a server of NAMES cannot take part; "" where it can."""
    if name == "llama-server" and not has_tool(name):
        return "not built: python bench/peers.py build"
    return ""


@contextmanager
def serving(name: str, setting: Setting) -> Iterator[int]:
    """The port of a server of NAMES, from when it has loaded the model until the block ends."""
    port = free_port()
    command, ready = (_ours if name == "ollama_engine" else _theirs)(setting, port)
    with running([*command, *setting.options], port, ready):
        _ask(port, setting.model.stem)
        yield port


def _ask(port: int, name: str) -> None:
    """One token: the first request is what loads the model. Not every file has a template for chats."""
    body = {"model": name, "prompt": "Hello", "max_tokens": 1}
    head = {"Content-Type": "application/json"}
    url = f"http://127.0.0.1:{port}/v1/completions"
    with urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), head), timeout=120) as answer:
        answer.read()


def _ours(setting: Setting, port: int) -> tuple[list[str], str]:
    command = [our_program(), "serve", str(setting.model), "--port", str(port), "--num-parallel", str(setting.slots)]
    return [*command, "--context-length", str(setting.num_ctx), "--max-queue", "1024"], "/api/version"


def _theirs(setting: Setting, port: int) -> tuple[list[str], str]:
    command = [tool("llama-server"), "-m", str(setting.model), "--port", str(port), "-np", str(setting.slots)]
    command += ["-c", str(setting.num_ctx * setting.slots), "-t", str(setting.threads)]
    return [*command, "--no-webui", "--log-disable", "--jinja"], "/health"


def share_prefix(name: str, port: int, slots: int) -> None:
    """Have each slot of a server begin with what its longest one holds. Ours shares prefixes by itself; llama-server
    reads a slot's file into the others, and was started with `--slot-save-path`.
    """
    if name == "ollama_engine":
        return

    def slot(i: int, action: str, file: str) -> int:
        url = f"http://127.0.0.1:{port}/slots/{i}?action={action}"
        head = {"Content-Type": "application/json"}
        body = json.dumps({"filename": file}).encode()
        with urllib.request.urlopen(urllib.request.Request(url, body, head), timeout=120) as answer:
            done: dict[str, int] = json.load(answer)
        return done["n_saved" if action == "save" else "n_restored"]

    lengths = {i: slot(i, "save", f"{i}.slot") for i in range(slots)}
    longest = max(lengths, key=lambda i: lengths[i])
    for i in lengths.keys() - {longest}:
        slot(i, "restore", f"{longest}.slot")


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@contextmanager
def running(command: list[str], port: int, ready: str) -> Iterator[None]:
    """A server, from when it is ready until the block ends."""
    with tempfile.TemporaryFile() as output:
        child = subprocess.Popen(command, stdout=output, stderr=output)
        try:
            _wait(child, f"http://127.0.0.1:{port}{ready}")
            yield
        except BaseException:
            output.seek(0)
            print(output.read()[-2000:].decode(errors="replace"), file=sys.stderr)
            raise
        finally:
            child.terminate()
            child.wait(30)


def _wait(child: subprocess.Popen[bytes], url: str) -> None:
    until = time.monotonic() + 120
    while time.monotonic() < until:
        if child.poll() is not None:
            raise SystemExit(f"serving: the server ended with {child.returncode}")
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(0.1)
    raise SystemExit("serving: the server is not ready after two minutes")
