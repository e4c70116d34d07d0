"""Only marked tests are repeated, few of them, and all is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plugins.repeats import MOST, refusal

pytest_plugins = ["pytester"]

SLOW = "a browser draws"
OK, FAILED, INTERRUPTED, USAGE, OTHER = 0, 1, 2, 4, 7


def run(exitstatus: int = FAILED, **failed: str) -> dict[str, Any]:
    return {"exitstatus": exitstatus, "failed": failed}


@pytest.mark.parametrize("n", [1, MOST])
def test_a_few_marked_tests_are_repeated(n: int) -> None:
    assert refusal(run(**{f"t{i}": SLOW for i in range(n)})) == ""


def test_a_test_without_the_marker_is_named() -> None:
    told = refusal(run(first=SLOW, second="", third=""))
    assert told.splitlines() == ["not marked 'timing', so not repeated:", "  second", "  third"]


def test_more_are_no_accident() -> None:
    told = refusal(run(**{f"t{i}": SLOW for i in range(MOST + 1)}))
    assert told.startswith("6 tests failed, and at most 5 are repeated:\n  t0\n")


@pytest.mark.parametrize("status", [OK, INTERRUPTED, USAGE, OTHER])
def test_a_run_that_failed_otherwise_is_not_repeated(status: int) -> None:
    assert refusal(run(status, some=SLOW)) == f"the last run ended with {status}, and not for failed tests alone"
    assert refusal(run(FAILED)) == "the last run ended with 1, and not for failed tests alone"
    assert refusal(None) == "the last run did not come to its end"


# -- the plugin --------------------------------------------------------------------------------------------------------

MODULE = """
import pathlib, pytest

@pytest.mark.timing("a browser draws")
@pytest.mark.parametrize("case", ["a/b [c]", "d"])
def test_slow(case):
    seen = pathlib.Path("seen")
    known = seen.read_text() if seen.exists() else ""
    with seen.open("a") as file:  # appended: two processes of xdist may be here at once
        file.write(case + ";")
    assert case in known or case == "d", "the first time"

def test_other():
    assert not pathlib.Path("broken").exists()
"""


@pytest.fixture
def project(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(test_some=MODULE)
    pytester.makeini("[pytest]\nmarkers = timing(reason)\naddopts = -p tests.plugins.repeats -p no:hypothesispytest\n")
    return pytester


def test_a_marked_test_is_repeated_and_listed(project: pytest.Pytester) -> None:
    assert project.runpytest_inprocess().ret == FAILED
    second = project.runpytest_inprocess("--repeat-failed")
    assert second.ret == OK
    second.assert_outcomes(passed=1)
    second.stdout.fnmatch_lines(["repeated: test_some.py::test_slow[[]a/b [[]c]]: passed (a browser draws)"])


def test_a_test_that_fails_twice_fails(project: pytest.Pytester) -> None:
    project.makepyfile(test_some=MODULE.replace("case in known", "False"))
    project.runpytest_inprocess()
    second = project.runpytest_inprocess("--repeat-failed")
    assert second.ret == FAILED
    second.stdout.fnmatch_lines(["repeated: test_some.py::test_slow*: failed (a browser draws)"])


def test_a_test_that_is_skipped_the_second_time_fails(project: pytest.Pytester) -> None:
    project.makepyfile(test_some=MODULE.replace("assert case in", "if known: pytest.skip()\n    assert case in"))
    project.runpytest_inprocess("-k", "slow and a/b")
    second = project.runpytest_inprocess("--repeat-failed")
    assert second.ret == FAILED
    second.stdout.fnmatch_lines(["repeated: test_some.py::test_slow*: skipped (a browser draws)"])


def test_nothing_is_repeated_beside_an_unmarked_test(project: pytest.Pytester) -> None:
    project.path.joinpath("broken").touch()
    assert project.runpytest_inprocess().ret == FAILED
    project.path.joinpath("broken").unlink()
    second = project.runpytest_inprocess("--repeat-failed")
    assert second.ret == USAGE
    second.stderr.fnmatch_lines(["*not marked 'timing', so not repeated:", "*test_some.py::test_other"])


def test_a_process_that_dies_leaves_nothing_to_repeat(project: pytest.Pytester) -> None:
    project.runpytest_inprocess("-k", "slow")
    project.makepyfile(test_some="import os\ndef test_dies(): os._exit(1)")
    project.runpytest_subprocess()
    second = project.runpytest_inprocess("--repeat-failed")
    assert second.ret == USAGE
    second.stderr.fnmatch_lines(["*the last run did not come to its end"])


def test_a_module_that_cannot_be_read_is_no_matter_of_time(project: pytest.Pytester) -> None:
    project.makepyfile(test_broken="import nowhere")
    assert project.runpytest_inprocess("--continue-on-collection-errors").ret == FAILED
    assert project.runpytest_inprocess("--repeat-failed").ret == USAGE


def test_the_marker_says_why(project: pytest.Pytester) -> None:
    project.makepyfile(test_some="import pytest\n@pytest.mark.timing\ndef test_some(): pass")
    done = project.runpytest_inprocess()
    assert done.ret == USAGE
    done.stderr.fnmatch_lines(["*test_some.py::test_some: write the reason*"])


@pytest.mark.slow
def test_processes_of_xdist_report_to_one(project: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    assert project.runpytest_subprocess("-n", "2").ret == FAILED
    assert project.runpytest_inprocess("--repeat-failed").ret == OK
