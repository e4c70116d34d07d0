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


@pytest.mark.parametrize("mebibytes", scaled([0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 400], quick=[4, 32, 400]))
def test_loading(mebibytes: int) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(mebibytes)], capture_output=True, text=True, timeout=100, check=False
    )
    assert run.returncode == 0, run
    assert run.stdout.startswith("NoMemoryError" if mebibytes < 10 else ("NoMemoryError", "1")), run
    assert mebibytes < 400 or run.stdout == "1\n"


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        ImportError("/lib/x.so: failed to map segment from shared object"),
        ImportError("numpy says a lot\n\nlibgfortran.so.5: cannot allocate memory in static TLS block"),
    ],
)
def test_what_means_that_memory_is_short(error: Exception) -> None:
    told = short_of_memory(error)
    assert isinstance(told, NoMemoryError)
    assert "ulimit -v" in str(told)


@pytest.mark.parametrize(
    "error", [ImportError("No module named 'x'"), ValueError(), NoMemoryError("x"), ConfigError("x")]
)
def test_what_does_not(error: Exception) -> None:
    assert short_of_memory(error) is None
