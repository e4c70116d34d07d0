"""llama.cpp's own tools: built once from the pinned sources, found, and run.

They lie in a cache folder, by the hash of the lock file's archive. A variable such as LLAMA_BENCH=/path/to/llama-bench
or LLAMA_BATCHED_BENCH=... names another one. Needs cmake, found beside this Python or on the PATH.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType, ModuleType

import ollama_engine

ROOT = Path(__file__).resolve().parents[1]
TOOLS = (
    "llama-bench", "llama-batched-bench", "llama-quantize", "llama-perplexity", "llama-completion", "llama-embedding",
    "llama-mtmd-cli", "llama-server",
)  # fmt: skip
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
GPU_TOOLS = ("llama-bench", "llama-batched-bench")
BACKENDS = ("cuda", "vulkan")
"""Backends for GPUs that this package may be built with; the tools then link the same ggml."""
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024


# -- building ----------------------------------------------------------------------------------------------------------


def load_fetch() -> ModuleType:
    """The build's own downloader, csrc/ggml/fetch.py, which is no package."""
    spec = importlib.util.spec_from_file_location("ggml_fetch", ROOT / "csrc/ggml/fetch.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def cache_folder(sha256: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "ollama_engine" / "peers" / sha256[:16]


def find_program(name: str) -> str | None:
    """A program beside this Python (pip installs cmake, ninja and this package's own there) or on the PATH."""
    return shutil.which(name, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))


def fetch_sources(source: Path) -> None:
    fetch = load_fetch()
    lock = fetch.read_lock(ROOT / "csrc/ggml/ggml.lock")
    whole = {**lock, "subtree": str(Path(lock["subtree"]).parent)}
    source.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=source.parent) as temp:
        print(f"downloading {lock['package']}", file=sys.stderr)
        archive = fetch.download(lock, Path(temp))
        fetch.verify(archive, lock["sha256"])
        fetch.unpack(archive, whole, source)


def build_tools(backend: str | None = None) -> Path:
    """The folder of the built tools; builds what is not there yet, with the compiler's progress on stderr.

    With a backend of BACKENDS they are GPU_TOOLS, in a folder of their own, on the ggml of this Python's package.
    """
    lock = load_fetch().read_lock(ROOT / "csrc/ggml/ggml.lock")
    source = cache_folder(lock["sha256"]) / "source"
    folder = source / (f"build-{backend}" if backend else "build")
    targets, tools = GPU_TOOLS if backend else TOOLS, folder / "bin"
    if all((tools / tool).exists() for tool in targets):
        return tools
    cmake = find_program("cmake")
    if cmake is None:
        raise SystemExit("peers: cmake was not found; install it (pip install cmake ninja) and try again")
    if not (source / "CMakeLists.txt").exists():
        fetch_sources(source)
    configure = [cmake, "-S", str(source), "-B", str(folder)]
    configure += [f"-D{key}={value}" for key, value in build_options(backend).items()]
    ninja = find_program("ninja")
    if ninja is not None:
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    jobs = str(os.cpu_count() or 1)
    build = [cmake, "--build", str(folder), "--target", *targets, "-j", jobs]
    subprocess.run(build, check=True, stdout=sys.stderr)
    return tools


def build_options(backend: str | None) -> dict[str, str]:
    """CMake's options for the tools with this backend; None is the CPU alone."""
    if backend is None:
        return OPTIONS | _without_amx()
    return OPTIONS | {
        "CMAKE_PROJECT_INCLUDE": str(ROOT / "csrc/ggml/for_peers.cmake"),
        "OLLAMA_ENGINE_GGML_LIBRARIES": str(our_libraries(backend)),
    }


def our_libraries(backend: str) -> Path:
    """The folder of this Python's ggml. Ends the program where its package was built without that backend."""
    folders = [Path(folder) / "_lib" for folder in ollama_engine.__path__]
    spec = importlib.util.find_spec("ollama_engine.ml.graph.backend")
    folders += [Path(spec.origin).parents[2] / "_lib"] if spec and spec.origin else []
    for folder in folders:
        if any(folder.glob(f"*ggml-{backend}-oe.*")):
            return folder
    raise SystemExit(f"peers: this Python's ollama_engine is built without {backend}; `make gpu-check` has one that is")


def _without_amx() -> dict[str, str]:
    """Build options for CPUs that announce AMX: ggml's AMX products end the process where the system forbids it."""
    try:
        announced = "amx_int8" in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        announced = False
    return dict.fromkeys(("CMAKE_C_FLAGS", "CMAKE_CXX_FLAGS"), "-mno-amx-int8") if announced else {}


def built(name: str) -> Path | None:
    """The file `name` below the folder of the peer's sources, such as build/bin/libllama.so, if it is there."""
    lock = load_fetch().read_lock(ROOT / "csrc/ggml/ggml.lock")
    path = cache_folder(lock["sha256"]) / "source" / name
    return path if path.exists() else None


def has_tool(name: str) -> bool:
    """Whether `tool` would find one of TOOLS without building it."""
    return bool(os.environ.get(_variable(name)) or built(f"build/bin/{name}"))


def tool(name: str) -> str:
    """The path of one of TOOLS. Builds all of them where it is missing."""
    return os.environ.get(_variable(name)) or str(built(f"build/bin/{name}") or build_tools() / name)


def _variable(name: str) -> str:
    return name.upper().replace("-", "_")


def our_program() -> str:
    """The path of this package's program."""
    program = find_program("ollama-engine")
    if program is None:
        raise SystemExit("peers: ollama-engine was not found beside this Python; install the package into it first")
    return program


# -- running -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Finished:
    stdout: str
    stderr: str
    seconds: float
    peak_rss_bytes: int


def _environment(added: Mapping[str, str]) -> dict[str, str]:
    """Programs in Python keep their bytecode, as they do once installed, and are not compiled at each start."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"} | dict(added)


def run(command: list[str], added: Mapping[str, str] = MappingProxyType({})) -> Finished:
    """Run to the end, with wall time and this child's own peak memory; `added` are variables of its environment."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=err, env=_environment(added))
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        told = err.read().decode(errors="replace")
        if child.returncode != 0:
            raise SystemExit(f"peers: {' '.join(command)} ended with {child.returncode}\n{told[-2000:]}")
        return Finished(out.read().decode(errors="replace"), told, seconds, usage.ru_maxrss * _MAXRSS_UNIT)
