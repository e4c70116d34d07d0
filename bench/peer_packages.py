"""Engines that `pip install` brings, in an environment of their own: .venv-peers beside this package's .venv.

ik_llama.cpp's wheel is for any CPU with AVX2. `ik-native` is the same release, its library compiled from the source
package for this CPU; IK_LLAMA_LIBRARY names one that is there already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

from bench.peer_tools import ROOT, find_program

FOLDER = ROOT / ".venv-peers"
PYTHON = FOLDER / "bin/python"
NATIVE = FOLDER / "ik-native"
NATIVE_OPTIONS = {
    "CMAKE_BUILD_TYPE": "Release",
    "BUILD_SHARED_LIBS": "ON",
    "GGML_NATIVE": "ON",
    "GGML_IQK_FA_ALL_QUANTS": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_SERVER": "OFF",
}


@dataclass(frozen=True)
class Package:
    """A distribution on PyPI, the module that it brings, and the newest release that was tried."""

    name: str
    module: str
    most: str


PACKAGES = {
    "ik": Package("ik-llama-cpp-python", "ik_llama_cpp", "0.1.5"),
    "xllamacpp": Package("xllamacpp", "xllamacpp", "2026.10.11549"),
    "openvino": Package("openvino-genai", "openvino_genai", "2026.4.1.0"),
    "benchy": Package("llama-benchy", "llama_benchy", "0.4.0"),
}


def missing(key: str) -> str:
    """Why a package of PACKAGES cannot be used; "" where it can."""
    if not PYTHON.exists():
        return f"{FOLDER.name} is not there: python bench/peers.py install"
    done = _run([str(PYTHON), "-c", f"import {PACKAGES[key].module}"])
    return "" if done.returncode == 0 else _last_line(done)


def version(key: str) -> str:
    """The installed version; "" where there is none."""
    asked = f"from importlib.metadata import version; print(version({PACKAGES[key].name!r}))"
    done = _run([str(PYTHON), "-c", asked])
    return done.stdout.strip() if done.returncode == 0 else ""


def native_library() -> Path | None:
    """ik_llama.cpp's library for this CPU, where it is built."""
    path = Path(os.environ.get("IK_LLAMA_LIBRARY") or NATIVE / "build/src/libllama.so")
    return path if path.exists() else None


def install(*, native: bool) -> dict[str, str]:
    """Make the environment and install each package. Returns, by package, its version or why it is left out."""
    if not PYTHON.exists():
        done = _run([sys.executable, "-m", "venv", str(FOLDER)])
        if done.returncode:
            return {FOLDER.name: f"left out: {_last_line(done)}"}
    found = {}
    for key, package in PACKAGES.items():
        done = _run([*_pip(), "install", "--only-binary", ":all:", f"{package.name}<={package.most}"])
        found[package.name] = version(key) if done.returncode == 0 else f"left out: {_last_line(done)}"
    if native:
        found["ik-native"] = build_native()
    return found


def build_native() -> str:
    """Compile ik_llama.cpp for this CPU: half an hour on 2 cores. Returns the library's path or why there is none.

    Only the library is built: the rest needs files that the source package of 0.1.5 lacks.
    """
    cmake, release = find_program("cmake"), version("ik")
    if cmake is None or not release:
        return "left out: it needs cmake and ik-llama-cpp-python"
    if native_library() is None:
        name = PACKAGES["ik"].name
        command = [*_pip(), "download", "--no-deps", "--no-binary", ":all:", "-d", str(NATIVE), f"{name}=={release}"]
        done = _run(command)
        archives = sorted(NATIVE.glob("*.tar.gz"))
        if done.returncode or not archives:
            return f"left out: {_last_line(done)}"
        with tarfile.open(archives[-1]) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # not in 3.10.11 and 3.11.3, nor before
            archive.extractall(NATIVE)
        source = next(NATIVE.glob("*/vendor/ik_llama.cpp"), None)
        if source is None:
            return f"left out: {archives[-1].name} has no vendor/ik_llama.cpp"
        options = [f"-D{key}={value}" for key, value in NATIVE_OPTIONS.items()]
        build, jobs = str(NATIVE / "build"), str(os.cpu_count() or 1)
        for words in (["-S", str(source), "-B", build, *options], ["--build", build, "--target", "llama", "-j", jobs]):
            status = subprocess.run([cmake, *words], check=False, stdout=sys.stderr).returncode
            if status:
                return f"left out: cmake {words[0]} ended with {status}, as its lines above say"
    return str(native_library() or "left out: the build left no library")


def _pip() -> list[str]:
    return [str(PYTHON), "-m", "pip", "--disable-pip-version-check"]


def _run(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = (done.stderr or done.stdout).strip().splitlines()
    return lines[-1] if lines else f"it ended with {done.returncode}"
