"""One command for a person with a GPU: is what this engine computes there right, and how fast is it?

    make gpu-check                       # CUDA or Vulkan, whichever can be built here
    make gpu-check GPU=vulkan            # that one
    make gpu-check GPU=rpc               # no GPU: a process of its own on this CPU stands in for one
    make gpu-check GPU_CHECK="--parts parity --models demo"

It builds the package with the backend into .venv-gpu-BACKEND. Then it compares greedy tokens, log-probabilities and
logits of many models with the CPU's, runs the contract suites on the device, and measures tokens/s beside llama.cpp
built with the same backend. The results become a section of docs/gpu.md. The exit status is 1 where something differs,
and 2 where something is missing. Arguments that are not --gpu go to bench/gpu/checks.py. Runs on any Python, before
anything is built.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.gpu.building import build
from bench.gpu.toolchain import BACKENDS, Machine, Toolchain, advice, choose, find, this_machine

ROOT = Path(__file__).resolve().parents[1]
MISSING = 2


def plan(backend: str | None, machine: Machine) -> Toolchain | str:
    """The toolchain to build with, or what to say where there is none."""
    toolchains = find(backend, machine) if backend else choose(machine)
    looked = toolchains if isinstance(toolchains, list) else [toolchains]
    complete = [toolchain for toolchain in looked if not toolchain.missing]
    return complete[0] if complete else advice(looked)


def command_line(wanted: str | None, rest: Sequence[str]) -> str:
    """The command that a person types to have the same again."""
    words = ["make", "gpu-check", *([f"GPU={wanted}"] if wanted else [])]
    return " ".join([*words, *([f'GPU_CHECK="{shlex.join(rest)}"'] if rest else [])])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpu", choices=BACKENDS, help="the backend; by default CUDA or Vulkan, what can be built")
    chosen, rest = parser.parse_known_args(arguments)
    planned = plan(chosen.gpu, this_machine())
    if isinstance(planned, str):
        print(planned, file=sys.stderr)
        return MISSING
    python = build(planned.backend)
    command = [str(python), "-m", "bench.gpu.checks", "--backend", planned.backend, "--versions",
               ", ".join(planned.versions), "--command", command_line(chosen.gpu, rest), *rest]  # fmt: skip
    path = os.pathsep.join([str(python.parent), os.environ.get("PATH", "")])
    return subprocess.run(command, cwd=ROOT, env={**os.environ, "PATH": path}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
