"""Without a package, what needs it is skipped, and nothing else is."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]

HERE = """
import pytest

def test_engine():
    raise ValueError("format needs the package absent, which is not installed; pip install absent")

def test_server():
    answer = "needs the package absent, which is not installed"
    assert answer == "yes"

def test_command():
    told = "error: serve needs packages that are not installed: pip install it (absent is missing)"
    assert told == "yes"

def test_imports():
    import absent.models

@pytest.fixture
def trained():
    import absent

def test_fixture(trained): pass

def test_fails():
    absent = "No module named 'absent'"
    assert not absent[:1]

def test_other():
    import absentee

def test_passes(): pass
"""


def run(pytester: pytest.Pytester, *options: str) -> pytest.RunResult:
    pytester.makepyfile(test_here=HERE, test_there="from absent import models\n\ndef test_there(): pass\n")
    return pytester.runpytest_subprocess(
        "-p", "tests.plugins.without", "-p", "no:hypothesispytest", "-p", "no:cacheprovider", "-ra", *options
    )


@pytest.mark.parametrize("processes", [(), ("-n", "1")])
def test_what_needs_a_missing_package_is_skipped_by_its_name(
    pytester: pytest.Pytester, processes: tuple[str, ...]
) -> None:
    done = run(pytester, "--without", "absent", *processes)
    done.assert_outcomes(passed=1, failed=2, skipped=6)
    done.stdout.fnmatch_lines_random(
        [
            "SKIPPED * test_there.py*needs absent, which this Python lacks",
            "FAILED test_here.py::test_fails*",
            "FAILED test_here.py::test_other*",
        ]
    )


def test_other_packages_are_not_excused(pytester: pytest.Pytester) -> None:
    done = run(pytester, "--without", "nowhere", "--continue-on-collection-errors")
    done.assert_outcomes(passed=1, failed=6, errors=2)


def test_a_package_that_is_installed_is_refused(pytester: pytest.Pytester) -> None:
    done = run(pytester, "--without", "pytest")
    assert done.ret == pytest.ExitCode.USAGE_ERROR
    done.stderr.fnmatch_lines(["*--without pytest: it is installed"])
