"""`--without PACKAGE`: tests that need a package which is not installed are skipped, each with the package's name.

For a Python for which packages of the extra `test` have no wheel (`wheels/suite.py`). A test needs one where its
module cannot be imported without it, or where its failure says that the engine lacks it. Others fail as ever.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import pytest

Report = TypeVar("Report", pytest.CollectReport, pytest.TestReport)
ERROR = r"(?m)^E .*(?:No module named '{0}['.]|needs the package {0}, which is not installed|[(]{0} is missing[)])"


class Without:
    """Makes a skip of a failure that names a missing package."""

    def __init__(self, packages: list[str]) -> None:
        self._errors = {name: re.compile(ERROR.format(name)) for name in packages}

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(
        self, collector: pytest.Collector
    ) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        return self._judged((yield), collector.path)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        return self._judged((yield), item.path)

    def _judged(self, report: Report, path: Path) -> Report:
        if report.failed:
            for name, error in self._errors.items():
                if error.search(report.longreprtext):
                    report.outcome = "skipped"
                    report.longrepr = (str(path), 0, f"Skipped: needs {name}, which this Python lacks")
                    break
        return report


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without", action="append", default=[], metavar="PACKAGE", help="skip tests that need it")


def pytest_configure(config: pytest.Config) -> None:
    packages = config.getoption("without")
    if here := [name for name in packages if find_spec(name)]:
        raise pytest.UsageError(f"--without {here[0]}: it is installed")
    config.pluginmanager.register(Without(packages))
