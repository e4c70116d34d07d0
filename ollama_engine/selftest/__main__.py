"""The program: `python -m ollama_engine.selftest`."""

from __future__ import annotations

import argparse
import importlib.util
import sys
import time
from collections.abc import Sequence

import ollama_engine
from ollama_engine.ml.device.device import devices
from ollama_engine.ml.device.device_info import system_line
from ollama_engine.selftest.answers import answer_checks
from ollama_engine.selftest.check import Check, WrongResultError
from ollama_engine.selftest.kernels import kernel_checks
from ollama_engine.selftest.parts import part_checks

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the checks; 0 where all results are right, 1 otherwise."""
    parser = argparse.ArgumentParser(
        prog="python -m ollama_engine.selftest",
        description="Compute with every kernel that this CPU runs and compare the results: seconds, and no network.",
    )
    parser.parse_args(arguments)
    print(f"ollama_engine {ollama_engine.__version__}: {system_line(devices())}")
    start = time.perf_counter()
    known = [*kernel_checks(), *part_checks(), *answer_checks()]
    checks = [check for check in known if not check.needs or importlib.util.find_spec(check.needs)]
    failed = [check.name for check in checks if not passes(check)]
    seconds = time.perf_counter() - start
    if failed:
        print(f"{len(failed)} of {len(checks)} checks FAILED: {', '.join(failed)}")
        print("do not trust what this installation computes here, and report the lines above")
        return 1
    print(f"all {len(checks)} checks passed in {seconds:.1f} s")
    for check in known:
        if check not in checks:
            print(f"not run: {check.name}, which needs the package {check.needs} (pip install {check.needs})")
    return 0


def passes(check: Check) -> bool:
    """Run one check and print its line."""
    start = time.perf_counter()
    try:
        said, right = check.run(), True
    except WrongResultError as error:
        said, right = f"WRONG: {error}", False
    except Exception as error:  # whatever breaks, the other checks still tell something
        said, right = f"FAILED: {type(error).__name__}: {error}", False
    print(f"{'ok  ' if right else 'FAIL'} {check.name:<24} {said}  ({time.perf_counter() - start:.2f} s)", flush=True)
    return right


if __name__ == "__main__":
    sys.exit(main())
