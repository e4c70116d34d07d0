"""What this CPU cannot run is counted."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

MODULE = """
import pytest
from tests.plugins.not_run_here import NOT_HERE, not_here

@pytest.mark.parametrize("name", ["scalar", *(pytest.param(n, marks=not_here(n)) for n in ("avx2", "amx"))])
@pytest.mark.parametrize("rows", [1, 2, 3])
def test_product(name, rows):
    assert name == "scalar"

def test_all(record_property):
    record_property(NOT_HERE, "amx")

@pytest.mark.skip(reason="no Chromium")
def test_page(): pass

def test_in_the_middle():
    pytest.skip(f"{NOT_HERE}a repacked layout")
"""


def counted(pytester: pytest.Pytester, source: str, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_some=source)
    return pytester.runpytest_subprocess(
        "-p", "tests.plugins.not_run_here", "-p", "no:hypothesispytest", "-ra", *options
    )


def test_cases_are_counted_by_what_they_need(pytester: pytest.Pytester) -> None:
    done = counted(pytester, MODULE)
    done.stdout.fnmatch_lines([
        "SKIPPED * no Chromium",
        "not on this CPU: 4 cases of amx, 3 cases of avx2, 1 cases of a repacked layout",
        "*4 passed, 1 skipped, 7 not on this CPU*",
    ])  # fmt: skip
    done.stdout.no_fnmatch_line("SKIPPED *amx*")


@pytest.mark.slow
def test_processes_of_xdist_are_counted_together(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    done = counted(pytester, MODULE, "-n", "2")
    done.stdout.fnmatch_lines(["not on this CPU: 4 cases of amx, 3 cases of avx2, 1 cases of a repacked layout"])


def test_nothing_is_said_where_all_ran(pytester: pytest.Pytester) -> None:
    counted(pytester, "def test_it(): pass").stdout.no_fnmatch_line("*not on this CPU*")
