"""llama.cpp's own tools, built from the pinned sources, and a comparison of `ollama-engine bench` with llama-bench.

    python bench/peers.py build                                     # about 10 minutes on 2 cores, once
    python bench/peers.py compare MODEL.gguf -p 512 -n 128 -t 2 -r 3

Both run the same ggml commit, so what differs is what surrounds it. The two take turns (A B A B ...), each time in a
fresh process, and medians are compared. The tools lie in a cache folder, by the hash of the lock file's archive;
LLAMA_BENCH=/path/to/llama-bench uses another one. Needs cmake, found beside this Python or on the PATH.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
TOOLS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-perplexity", "llama-completion")
OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_USE_PREBUILT_UI": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_CURL": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
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
    """A build tool beside this Python (pip installs cmake and ninja there) or on the PATH."""
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


def build_tools() -> Path:
    """The folder of the built tools; builds what is not there yet, with the compiler's progress on stderr."""
    lock = load_fetch().read_lock(ROOT / "csrc/ggml/ggml.lock")
    source = cache_folder(lock["sha256"]) / "source"
    tools = source / "build" / "bin"
    if all((tools / tool).exists() for tool in TOOLS):
        return tools
    cmake = find_program("cmake")
    if cmake is None:
        raise SystemExit("peers: cmake was not found; install it (pip install cmake ninja) and try again")
    if not (source / "CMakeLists.txt").exists():
        fetch_sources(source)
    configure = [cmake, "-S", str(source), "-B", str(source / "build")]
    configure += [f"-D{key}={value}" for key, value in OPTIONS.items()]
    ninja = find_program("ninja")
    if ninja is not None:
        configure += ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    subprocess.run(configure, check=True, stdout=sys.stderr)
    jobs = str(os.cpu_count() or 1)
    build = [cmake, "--build", str(source / "build"), "--target", *TOOLS, "-j", jobs]
    subprocess.run(build, check=True, stdout=sys.stderr)
    return tools


def llama_bench() -> str:
    return os.environ.get("LLAMA_BENCH") or str(build_tools() / "llama-bench")


# -- measuring ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """One run, or the medians of several. Speeds in tokens/s; `short_run_seconds` is the wall time of a whole process
    that loads the model and computes one prompt token and one more; `peak_rss_bytes` covers mapped model pages."""

    prefill_tps: float
    decode_tps: float
    load_seconds: float
    short_run_seconds: float
    peak_rss_bytes: float


@dataclass(frozen=True)
class Finished:
    stdout: str
    seconds: float
    peak_rss_bytes: int


def run(command: list[str]) -> Finished:
    """Run to the end, with wall time and this child's own peak memory."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.perf_counter()
        child = subprocess.Popen(command, stdout=out, stderr=err)
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        err.seek(0)
        if child.returncode != 0:
            tail = err.read().decode(errors="replace")[-2000:]
            raise SystemExit(f"peers: {' '.join(command)} ended with {child.returncode}\n{tail}")
        return Finished(out.read().decode(errors="replace"), seconds, usage.ru_maxrss * _MAXRSS_UNIT)


def measure_ours(model: str, prompt: int, generate: int, threads: int) -> Figures:
    program = find_program("ollama-engine")
    if program is None:
        raise SystemExit("peers: ollama-engine was not found beside this Python; install the package into it first")
    command = [program, "bench", model, "-t", str(threads), "-r", "1", "--json"]
    short = run([*command, "-p", "1", "-n", "1", "--no-warmup"])
    full = run([*command, "-p", str(prompt), "-n", str(generate)])
    result = json.loads(full.stdout)
    return Figures(
        result["prefill_tps"], result["decode_tps"], result["load_seconds"], short.seconds, full.peak_rss_bytes
    )


def measure_peer(model: str, prompt: int, generate: int, threads: int) -> Figures:
    """llama-bench does not report its load time: it is what remains of the short run besides its two tests."""
    command = [llama_bench(), "-m", model, "-t", str(threads), "-r", "1", "-o", "json"]
    short = run([*command, "-p", "1", "-n", "1", "--no-warmup"])
    in_tests = sum(sum(test["samples_ns"]) for test in json.loads(short.stdout)) / 1e9
    full = run([*command, "-p", str(prompt), "-n", str(generate)])
    speeds = llama_bench_speeds(json.loads(full.stdout))
    return Figures(*speeds, short.seconds - in_tests, short.seconds, full.peak_rss_bytes)


def llama_bench_speeds(tests: list[dict[str, Any]]) -> tuple[float, float]:
    """(prefill, decode) in tokens/s from llama-bench's JSON, one entry per test."""
    prefill = [test["avg_ts"] for test in tests if test["n_prompt"] > 0 and test["n_gen"] == 0]
    decode = [test["avg_ts"] for test in tests if test["n_gen"] > 0 and test["n_prompt"] == 0]
    return prefill[0], decode[0]


def medians(runs: list[Figures]) -> Figures:
    rows = [asdict(run) for run in runs]
    return Figures(**{key: statistics.median(row[key] for row in rows) for key in rows[0]})


# -- reporting ---------------------------------------------------------------------------------------------------------

ROWS = (
    ("prefill, tokens/s", "prefill_tps", 1.0, 1),
    ("decode, tokens/s", "decode_tps", 1.0, 2),
    ("load, s", "load_seconds", 1.0, 2),
    ("short run, s", "short_run_seconds", 1.0, 2),
    ("peak memory, MiB", "peak_rss_bytes", 2.0**-20, 0),
)


def report(ours: Figures, peer: Figures) -> str:
    lines = ["| | ollama_engine | llama.cpp | ratio |", "|---|---:|---:|---:|"]
    for title, key, unit, digits in ROWS:
        a, b = getattr(ours, key) * unit, getattr(peer, key) * unit
        lines.append(f"| {title} | {a:.{digits}f} | {b:.{digits}f} | {a / b if b else float('nan'):.2f} |")
    return "\n".join(lines)


def compare(model: str, prompt: int, generate: int, threads: int, repetitions: int) -> dict[str, Any]:
    llama_bench()  # builds it now rather than in the middle of the runs
    ours, peer = [], []
    for i in range(repetitions):
        print(f"round {i + 1} of {repetitions}", file=sys.stderr)
        ours.append(measure_ours(model, prompt, generate, threads))
        peer.append(measure_peer(model, prompt, generate, threads))
    return {
        "model": os.path.basename(model), "prompt": prompt, "generate": generate, "threads": threads,
        "repetitions": repetitions, "ours": asdict(medians(ours)), "llama_cpp": asdict(medians(peer)),
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="llama.cpp's tools from the pinned sources, and a comparison.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("build", help="build the tools and print their folder")
    against = commands.add_parser("compare", help="measure MODEL with both engines in turn")
    against.add_argument("model", metavar="MODEL")
    against.add_argument("-p", type=int, default=512, metavar="TOKENS", help="prompt length")
    against.add_argument("-n", type=int, default=128, metavar="TOKENS", help="tokens to generate")
    against.add_argument("-t", type=int, default=os.cpu_count() or 1, metavar="THREADS")
    against.add_argument("-r", type=int, default=3, metavar="ROUNDS")
    against.add_argument("--json", action="store_true", help="print JSON instead of a table")
    chosen = parser.parse_args(arguments)
    if chosen.command == "build":
        print(build_tools())
        return
    result = compare(chosen.model, chosen.p, chosen.n, chosen.t, chosen.r)
    table = report(Figures(**result["ours"]), Figures(**result["llama_cpp"]))
    print(json.dumps(result, indent=2) if chosen.json else table)


if __name__ == "__main__":
    main()
