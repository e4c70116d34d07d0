"""Finds out whether this machine can build a backend: pure decisions over what a Machine says.

No module of the package is imported here: this runs before anything is built.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

BACKENDS = ("cuda", "vulkan", "rpc")
INCLUDES = ("/usr/include", "/usr/local/include", "/opt/homebrew/include")
LAYER_SETTINGS = "VK_EXT_layer_settings"
"""The newest extension whose types ggml's Vulkan backend names in any case: headers without it do not compile."""
HOW_TO: Mapping[str, str] = {
    "nvcc": "install the CUDA toolkit, and put its bin folder on the PATH",
    "nvidia-smi": "install NVIDIA's driver",
    "glslc": "install glslc (Debian: apt install glslc; or the Vulkan SDK)",
    "vulkan.h": "install Vulkan's headers (Debian: apt install libvulkan-dev; or the Vulkan SDK, VULKAN_SDK names it)",
    "spirv.hpp": "install SPIRV-Headers (Debian: apt install spirv-headers; or the Vulkan SDK)",
}


@dataclass(frozen=True)
class Machine:
    """Questions to a machine; tests answer them themselves. Each answer is None where there is nothing."""

    read: Callable[[str], str | None]
    run: Callable[[list[str]], str | None]
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Toolchain:
    """How a backend is built here, or what is missing for it: a sentence for each thing."""

    backend: str
    versions: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()


def this_machine() -> Machine:
    return Machine(_read, _run, os.environ)


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None


def _run(command: list[str]) -> str | None:
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout if found.returncode == 0 else None


def find(backend: str, machine: Machine) -> Toolchain:
    """The machine's tools for this backend of BACKENDS."""
    return {"cuda": _cuda, "vulkan": _vulkan, "rpc": lambda _: Toolchain("rpc")}[backend](machine)


def choose(machine: Machine) -> Toolchain | list[Toolchain]:
    """CUDA before Vulkan; where neither can be built, both with what they miss."""
    looked = [find(backend, machine) for backend in ("cuda", "vulkan")]
    return next((toolchain for toolchain in looked if not toolchain.missing), looked)


def _cuda(machine: Machine) -> Toolchain:
    missing, versions = [], []
    found = re.search(r"release [\d.]+, V([\d.]+)", machine.run(["nvcc", "--version"]) or "")
    if found:
        versions.append(f"nvcc {found[1]}")
    else:
        missing.append(f"nvcc was not found: {HOW_TO['nvcc']}")
    listed = machine.run(["nvidia-smi", "-L"])
    if listed is None:
        missing.append(f"nvidia-smi was not found, or fails: {HOW_TO['nvidia-smi']}")
    elif "GPU " not in listed:
        missing.append("nvidia-smi lists no GPU")
    driver = machine.run(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]) or ""
    versions += [f"driver {line.strip()}" for line in driver.splitlines()[:1]]
    return Toolchain("cuda", tuple(versions), tuple(missing))


def _vulkan(machine: Machine) -> Toolchain:
    missing, versions = [], []
    glslc = machine.run(["glslc", "--version"])
    if glslc is None:
        missing.append(f"glslc was not found: {HOW_TO['glslc']}")
    else:
        versions.append("glslc " + (glslc.split("\n")[0].split() or ["?"])[-1])
    sdk = machine.environment.get("VULKAN_SDK")
    folders = ([f"{sdk}/include"] if sdk else []) + list(INCLUDES)
    headers = next(filter(None, (machine.read(f"{folder}/vulkan/vulkan_core.h") for folder in folders)), None)
    if headers is None:
        missing.append(f"vulkan/vulkan_core.h was not found: {HOW_TO['vulkan.h']}")
    else:
        version = header_version(headers)
        versions.append(f"headers {version}")
        if LAYER_SETTINGS not in headers:
            missing.append(f"Vulkan's headers are {version}, too old for ggml, which names {LAYER_SETTINGS} (from "
                           "1.3.272 on): set VULKAN_SDK to a newer SDK, or to any folder with `include/vulkan` of one"
                           )  # fmt: skip
    if not any(machine.read(f"{folder}/spirv/unified1/spirv.hpp") for folder in folders):
        missing.append(f"spirv/unified1/spirv.hpp was not found: {HOW_TO['spirv.hpp']}")
    driver = re.search(r"driverInfo\s*=\s*(.+)", machine.run(["vulkaninfo", "--summary"]) or "")
    if driver:
        versions.append(f"driver {driver[1].strip()}")
    return Toolchain("vulkan", tuple(versions), tuple(missing))


def header_version(text: str) -> str:
    """The version that vulkan_core.h names, such as "1.4.309"."""
    complete = re.search(r"VK_HEADER_VERSION_COMPLETE VK_MAKE_API_VERSION\(0, (\d+), (\d+), VK_HEADER_VERSION\)", text)
    patch = re.search(r"#define VK_HEADER_VERSION (\d+)", text)
    return f"{complete[1]}.{complete[2]}.{patch[1]}" if complete and patch else "of an unknown version"


def advice(looked: list[Toolchain]) -> str:
    """Advice where nothing can be built, for a person at a terminal."""
    lines = ["gpu-check: no GPU backend can be built here"]
    for toolchain in looked:
        lines += [f"  {toolchain.backend}:", *(f"    - {sentence}" for sentence in toolchain.missing)]
    lines.append("`make gpu-check GPU=rpc` needs no GPU: another process on this CPU stands in for one")
    return "\n".join(lines)
