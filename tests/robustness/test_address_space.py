"""A process whose address space is limited: loading works, or ends with NoMemoryError."""

from __future__ import annotations

import subprocess
import sys

import pytest

from ollama_engine.errors import ConfigError, NoMemoryError, short_of_memory
from tests.suite import scaled

pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(sys.platform != "linux", reason="needs RLIMIT_AS to count")]

CHILD = """
import resource, sys
import numpy  # what it needs is not ours to say
from ollama_engine.errors import NoMemoryError
with open("/proc/self/statm") as file:
    used = int(file.read().split()[0]) * resource.getpagesize()
limit = used + int(sys.argv[1]) * 2**20
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
try:
    from ollama_engine import Engine, SamplingParams, demo
    with Engine(demo.path(), num_ctx=64, threads=1) as engine:
        print(len(engine.generate("Once", SamplingParams(max_tokens=1)).tokens))
except NoMemoryError as error:
    print("NoMemoryError", error)
"""


LIMITS = scaled([0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 400], quick=[4, 32, 400])
"""Mebibytes beyond what the process has before it loads."""


def test_loading() -> None:
    runs = {limit: _load_within(limit) for limit in LIMITS}
    assert {run.returncode for run in runs.values()} <= {0, 1}, runs  # no signal
    assert runs[400].stdout == "1\n", runs[400]
    untold = [run for limit, run in runs.items() if not run.stdout.startswith(_outcomes(limit))]
    # CPython itself, without a byte left, raises what it can: about one limit in 500 (swept in steps of 37 kB)
    assert len(untold) <= 1, untold


def _load_within(mebibytes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(mebibytes)], capture_output=True, text=True, timeout=100, check=False
    )


def _outcomes(mebibytes: int) -> tuple[str, ...]:
    return ("NoMemoryError",) if mebibytes < 10 else ("NoMemoryError", "1")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("/lib/x.so: failed to map segment from shared object"),
        OSError(12, "Cannot allocate memory"),
        SystemError("error return without exception set"),
        ImportError("numpy says a lot\n\nlibgfortran.so.5: cannot allocate memory in static TLS block"),
    ],
)
def test_what_means_that_memory_is_short(error: Exception) -> None:
    told = short_of_memory(error)
    assert isinstance(told, NoMemoryError)
    assert "ulimit -v" in str(told)


@pytest.mark.parametrize(
    "error",
    [
        ImportError("No module named 'x'"),
        OSError(2, "No such file"),
        SystemError("x"),
        ValueError(),
        NoMemoryError("x"),
        ConfigError("x"),
    ],
)
def test_what_does_not(error: Exception) -> None:
    assert short_of_memory(error) is None
