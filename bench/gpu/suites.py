"""The contract suites with all layers of their models on a device, each in a pytest of its own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from bench.gpu.children import status_of

ROOT = Path(__file__).resolve().parents[2]
SUITES = (
    "tests/models/test_contract.py",
    "tests/models/test_vision_runner.py",
    "tests/session",
    "tests/engine/test_forks.py",
    "tests/engine/test_embed.py",
)
SUITE_SECONDS = 5400.0
PYTEST_STATUS = (0, 1, 5)
"""All passed, some failed, there are none: what pytest's file says, too."""


@dataclass(frozen=True)
class Suite:
    """Pytest's result for one suite. `error`: why there is none."""

    name: str
    passed: int = 0
    skipped: int = 0
    failed: tuple[str, ...] = ()
    error: str = ""

    @property
    def ok(self) -> bool:
        return not self.failed and not self.error and self.passed > 0


def read_junit(name: str, text: str) -> Suite:
    """The counts of a file that `pytest --junitxml` wrote."""
    passed, skipped, failed = 0, 0, []
    for case in ET.fromstring(text).iter("testcase"):
        kinds = {part.tag for part in case}
        if kinds & {"failure", "error"}:
            failed.append(f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name')}")
        elif "skipped" in kinds:
            skipped += 1
        else:
            passed += 1
    return Suite(name, passed, skipped, tuple(failed))


def run_suites(options: Sequence[str], names: Sequence[str], tell: Callable[[str], None], jobs: int = 1) -> list[Suite]:
    """`options`: where models go, such as ["--on-device", "CUDA0"]. `jobs`: processes of pytest's."""
    suites = []
    options = [*options, "-n", str(jobs), "--dist", "worksteal"] if jobs > 1 else options
    for number, name in enumerate(names):
        tell(f"suite {number + 1} of {len(names)}: {name}")
        suite = run_suite(options, name)
        for test in suite.failed:
            tell(f"  FAILED {test}")
        tell(f"  {suite.passed} passed, {len(suite.failed)} failed, {suite.skipped} skipped {suite.error}".rstrip())
        suites.append(suite)
    return suites


def run_suite(options: Sequence[str], name: str, seconds: float = SUITE_SECONDS) -> Suite:
    with tempfile.TemporaryDirectory(prefix="oe-gpu-") as folder:
        written = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={written}", *options]
        with (Path(folder) / "output").open("w+") as output:
            process = subprocess.Popen([*command, name], cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
            status = status_of(process, seconds)
            output.seek(0)
            said = [line.strip() for line in output if line.strip()]
        suite = read_junit(name, written.read_text(encoding="utf-8")) if written.exists() else Suite(name)
        if written.exists() and status in PYTEST_STATUS:
            return suite
        # A driver may well end the process when all tests have passed.
        return replace(suite, error=f"ended with {status}: {' '.join(said[-1:])}")
