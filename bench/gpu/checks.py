"""All checks of one device, by the Python that has the package with its backend; gpu_check.py starts this.

python -m bench.gpu.checks --backend cuda --versions "nvcc 13.0, driver 580.1" --command "make gpu-check"
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import fnmatch
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bench.gpu import page, parity, speeds, suites
from bench.gpu.models import subjects
from bench.gpu.toolchain import BACKENDS
from bench.real_model import real_model
from ollama_engine import Engine, __version__, demo
from ollama_engine.errors import EngineError
from ollama_engine.ml.device.device import ggml_version

if TYPE_CHECKING:
    from ollama_engine.ml.device.device_info import Device

LIBRARIES = {"cuda": "CUDA", "vulkan": "Vulkan"}
STAND_IN = (
    "This is no GPU: a worker on loopback, another process on the same CPU with memory of its own, which ggml treats "
    "as it treats a GPU. It proves the program and the placement, and says nothing of speed on a GPU."
)
SOFTWARE = (
    "This is no GPU: a driver that computes on the CPU. Results are those of ggml's Vulkan kernels; its speed says "
    "nothing of a GPU."
)
PARTS = ("parity", "suites", "speed")
GPU_SHAPES = ("llama-1b:q4_k_m", "llama-8b:q4_k_m")
LONG_PROMPT = 2048
WIDTHS = (8, 32)
"""Numbers of streams that are computed together."""


@dataclass(frozen=True)
class Target:
    """The device that is checked."""

    name: str
    description: str
    in_suites: tuple[str, ...]
    """pytest's options that put models there."""
    note: str = ""


def tell(text: str) -> None:
    print(f"gpu-check: {text}", file=sys.stderr, flush=True)


def choose_device(backend: str, devices: Sequence[Device], name: str | None) -> Device:
    """The device of that name, or the first one that the backend drives. Ends the program where there is none."""
    driven = [device for device in devices if device.library == LIBRARIES[backend]]
    named = [device for device in driven if name in (None, device.name)]
    if named:
        return named[0]
    there = ", ".join(device.name for device in driven)
    if there:
        raise SystemExit(f"gpu-check: there is no device {name}; there are: {there}")
    hint = " GGML_VK_VISIBLE_DEVICES=0 takes a driver that computes on the CPU." if backend == "vulkan" else ""
    raise SystemExit(f"gpu-check: the build with {backend} finds no device of it; is the driver installed?{hint}")


def is_software(description: str) -> bool:
    """Whether a Vulkan driver of this name computes on the CPU."""
    return any(word in description.lower() for word in ("llvmpipe", "lavapipe", "swiftshader"))


@contextlib.contextmanager
def target(backend: str, name: str | None) -> Iterator[Target]:
    """The device that is checked; for `rpc` that of a worker that runs meanwhile."""
    if backend != "rpc":
        device = choose_device(backend, Engine.devices(), name)
        note = SOFTWARE if is_software(device.description) else ""
        yield Target(device.name, device.description, ("--on-device", device.name), note)
        return
    from tests.support.workers import running_worker  # noqa: PLC0415 (for this backend only)

    with tempfile.TemporaryDirectory(prefix="oe-gpu-") as folder, running_worker(Path(folder)) as worker:
        cpu = next(device for device in Engine.devices() if device.kind == "cpu")
        yield Target(worker.address, f"a worker on loopback: {cpu.description}", ("--on-workers",), STAND_IN)


def speed_models(quick: bool) -> list[str]:
    """Files whose speed is measured: the demo's, and SmolLM2's where it can be had."""
    real = None if quick else real_model()
    return [str(demo.path()), *([str(real)] if real else [])]


def default_jobs(backend: str) -> int:
    """Jobs at a time: a worker stands for one device with this machine's CPUs, and drivers of the CPU take all."""
    return max(1, min(8, (os.cpu_count() or 1) // 2)) if backend == "cuda" else 1


def shapes(chosen: argparse.Namespace) -> list[str]:
    """Shapes whose speed is measured: on a GPU some, unless others are named or `--quick` is given."""
    if chosen.shapes is not None:
        return list(chosen.shapes)
    return [] if chosen.quick or chosen.backend == "rpc" else list(GPU_SHAPES)


def matching(names: Sequence[str], patterns: Sequence[str]) -> list[str]:
    """The names that one of the patterns means, such as "tiny*"; ends the program where a pattern means none."""
    for pattern in patterns:
        if not fnmatch.filter(names, pattern):
            raise SystemExit(f"gpu-check: there is no model {pattern}; there are: {', '.join(names)}")
    return [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def check(chosen: argparse.Namespace) -> Iterator[page.Report]:
    """Run the parts that were asked for; after each the report of all so far, as a later part may end the program."""
    with target(chosen.backend, chosen.device) as device:
        tell(f"{device.name}: {device.description}")
        report = _begin(chosen, device)
        if "parity" in chosen.parts:
            names = matching([subject.name for subject in subjects()], chosen.models)
            report = replace(report, rows=parity.compare_all(device.name, names, tell, chosen.jobs))
            yield report
        if "suites" in chosen.parts:
            report = replace(report, suites=suites.run_suites(device.in_suites, chosen.suites, tell, chosen.jobs))
            yield report
        if "speed" in chosen.parts:
            peer = None if chosen.backend == "rpc" else chosen.backend
            prompt, answer, rounds = chosen.load
            load = speeds.Load((prompt,), answer, rounds)
            measured = speeds.compare(speed_models(chosen.quick), device.name, peer, load, tell)
            many = speeds.Load((prompt, LONG_PROMPT), answer, rounds, WIDTHS)
            with speeds.shaped_files(shapes(chosen), tell) as files:
                measured += speeds.compare(files, device.name, peer, many, tell)
            yield replace(report, speeds=measured)


def _begin(chosen: argparse.Namespace, device: Target) -> page.Report:
    """The report before anything was checked."""
    built_with = [version for version in chosen.versions.split(", ") if version]
    return page.Report(
        datetime.date.today().isoformat(),
        "rpc://127.0.0.1" if chosen.backend == "rpc" else device.name,
        device.description,
        chosen.backend,
        [f"ollama_engine {__version__}", f"ggml {ggml_version()}", *built_with],
        chosen.command,
        notes=[device.note] if device.note else [],
    )


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--backend", choices=BACKENDS, required=True)
    made.add_argument("--device", help="the device's name; by default the first one of the backend")
    made.add_argument("--versions", default="", help="of what it was built with")
    made.add_argument("--command", default="make gpu-check", help="what the page says of how to repeat this")
    made.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    made.add_argument("--models", nargs="+", default=["*"], metavar="NAME", help='these only, such as demo "tiny*"')
    made.add_argument("--suites", nargs="+", default=suites.SUITES, metavar="TESTS", help="run these tests only")
    made.add_argument("--load", nargs=3, type=int, default=(512, 128, 3), metavar=("PROMPT", "ANSWER", "ROUNDS"))
    made.add_argument("--shapes", nargs="*", metavar="SHAPE:PRESET", help="random weights whose speed is measured, "
                      "such as qwen3-30b:q4_k_m (19 GB); by default those of Llama 1B and 8B on a GPU")  # fmt: skip
    made.add_argument("--jobs", type=int, default=None, help="models compared, and tests run, at a time")
    made.add_argument("--quick", action="store_true", help="speed of the demo model alone")
    made.add_argument("--page", type=Path, default=Path(__file__).resolve().parents[2] / "docs" / "gpu.md")
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    chosen = parser().parse_args(arguments)
    if chosen.jobs is None:
        chosen.jobs = default_jobs(chosen.backend)
    passed = True
    try:
        for report in check(chosen):
            before = chosen.page.read_text(encoding="utf-8") if chosen.page.exists() else ""
            chosen.page.write_text(page.insert(before, page.section(report)), encoding="utf-8")
            passed = report.passed
    except EngineError as error:
        raise SystemExit(f"gpu-check: {error}") from error
    tell(f"{'passed' if passed else 'FAILED'}; the table is in {chosen.page}")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
