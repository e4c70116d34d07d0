"""A process whose address space is limited: loading works, or ends with NoMemoryError."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from ollama_engine.errors import ConfigError, NoMemoryError, short_of_memory
from ollama_engine.ml.graph import backend
from tests.support.emulated import NEEDS_LIMITS
from tests.support.suite import scaled

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs ELF, and Linux's limits")

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


CPYTHONS_OWN = re.compile(
    r"Traceback \(most recent call last\):\n"
    r'(  File "(<string>|<frozen [\w.]+>)", line \d+, in .*\n)+'
    r"(MemoryError|SystemError: (?!.*(cyfunction|ollama_engine))"
    r".*(returned NULL without setting an exception|error return without exception set))\n"
)
"""What CPython raises where it has no memory for a frame or an exception, in a statement of the caller's, and not of a
function of ours, which would forget to raise. Swept in steps of 37 kB, it is about one limit in 500."""
LINKERS_OWN = "cannot allocate memory for thread-local data: ABORT\n"
"""What glibc says as it ends a process that has no memory for a library's thread-local data. It asks for them when a
thread first uses the library; of what is loaded here numpy, its OpenBLAS and libstdc++ have them, and ours do not."""


@NEEDS_LIMITS
@pytest.mark.parametrize("mebibytes", LIMITS)
def test_loading(mebibytes: int) -> None:
    run = _load_within(mebibytes)
    if run.returncode == 127 and mebibytes < 400:
        assert run.stderr == LINKERS_OWN, run
    elif run.returncode == 1 and mebibytes < 400:
        assert CPYTHONS_OWN.fullmatch(run.stderr), run
    else:
        assert run.returncode == 0, run  # no signal
        assert run.stdout.startswith(_outcomes(mebibytes)), run


@pytest.mark.parametrize(
    "ours", ['File "/x/ollama_engine/lazy.py", line 24, in get', 'File "<string>", line 10, in <x>']
)
def test_errors_of_our_code_are_not_cpythons_own(ours: str) -> None:
    told = "SystemError: <function f at 0x7f> returned NULL without setting an exception"
    stderr = f"Traceback (most recent call last):\n  {ours}\n{told}\n"
    assert bool(CPYTHONS_OWN.fullmatch(stderr)) is ("<string>" in ours)
    for function in ("<cyfunction Backend.close at 0x7f>", "<class 'ollama_engine.ml.graph.backend.Backend'>"):
        assert not CPYTHONS_OWN.fullmatch(stderr.replace("<function f at 0x7f>", function))
    assert not CPYTHONS_OWN.fullmatch(stderr.replace(told, "ImportError: libggml.so: failed to map segment"))


def test_no_library_of_ours_has_thread_local_data() -> None:
    """glibc would end the process where it has no memory for them; see LINKERS_OWN."""
    libraries = list(Path(backend.__file__).parents[2].rglob("*.so"))
    assert any(found.name.startswith("libggml") for found in libraries)
    assert [found.name for found in libraries if PT_TLS in _segment_types(found)] == []


PT_TLS = 7
"""The type of an ELF segment of thread-local data (`elf.h`)."""


def _segment_types(path: Path) -> set[int]:
    """Types of the segments of a 64-bit little-endian ELF file."""
    with path.open("rb") as file:
        header = file.read(64)
        assert header[:6] == b"\x7fELF\x02\x01", path
        (offset,) = struct.unpack_from("<Q", header, 32)
        size, count = struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        return {struct.unpack("<I", file.read(size)[:4])[0] for _ in range(count)}


def _load_within(mebibytes: int) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(mebibytes)], capture_output=True, text=True, timeout=100, check=False
    )


def _outcomes(mebibytes: int) -> tuple[str, ...]:
    if mebibytes == 400:
        return ("1\n",)
    return ("NoMemoryError",) if mebibytes < 10 else ("NoMemoryError", "1\n")


PLANNING = """
import resource, sys
from ollama_engine.errors import NoMemoryError
from ollama_engine.ml import ops
from ollama_engine.ml.device.placement import BackendParams
from ollama_engine.ml.graph.backend import Backend
from ollama_engine.ml.graph.context import Context
with Backend(BackendParams(threads=1), max_nodes=40_000) as backend, Context(backend, max_nodes=40_000) as ctx:
    x = ctx.input("f32", (4,))
    for _ in range(20_000):
        x = ops.scale(x, 1.0)
    ctx.forward(x)
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 2**21, used + 2**21))
    try:
        getattr(ctx, sys.argv[1])()
    except NoMemoryError as error:
        print("NoMemoryError", error)
"""


@NEEDS_LIMITS
@pytest.mark.parametrize("method", ["alloc", "measure", "reserve"])
def test_no_memory_to_plan_a_graph(method: str) -> None:
    """ggml asserts that it has this memory, and ends the process."""
    command = [sys.executable, "-c", PLANNING, method]
    run = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert (run.returncode, run.stderr) == (0, ""), run
    assert run.stdout.startswith("NoMemoryError no "), run


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
