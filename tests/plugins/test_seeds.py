"""Random tests draw by a printed seed, and the second run by the same."""

from __future__ import annotations

import re

import pytest

pytest_plugins = ["pytester"]

MODULE = """
import pytest
from hypothesis import Phase, given, settings, strategies as st

drawn = []

@settings(max_examples=100, phases=[Phase.generate])
@given(st.integers(0, 10**9))
def test_draws(number):
    drawn.append(number)

@pytest.mark.timing("never done")
def test_tells():
    assert False, f"drawn {sum(drawn)}"
"""


def seed_and_draws(result: pytest.RunResult) -> tuple[str, str]:
    text = result.stdout.str()
    found = re.search(r"--hypothesis-seed=(\d+)", text), re.search(r"drawn (\d+)", text)
    assert all(found), text
    return found[0][1], found[1][1]  # type: ignore[index]


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    for name in (
        "CI",
        "GITHUB_ACTIONS",
        "GITLAB_CI",
    ):
        monkeypatch.delenv(name, raising=False)
    pytester.makepyfile(test_some=MODULE)
    pytester.makeini("[pytest]\nmarkers = timing(reason)\n")
    pytester.makeconftest("pytest_plugins = ['tests.plugins.repeats', 'tests.plugins.seeds']")  # after hypothesis's own
    return pytester


@pytest.mark.slow
def test_each_run_has_its_seed(project: pytest.Pytester) -> None:
    first, other = (seed_and_draws(project.runpytest_subprocess()) for _ in range(2))
    assert first[0] != other[0]
    assert first[1] != other[1]
    assert seed_and_draws(project.runpytest_subprocess(f"--hypothesis-seed={first[0]}")) == first
    assert seed_and_draws(project.runpytest_subprocess("--failed-first"))[0] == first[0]


def test_a_repeated_test_draws_as_before(project: pytest.Pytester) -> None:
    """Though fewer modules are loaded, whose constants hypothesis would draw."""
    project.makepyfile(test_some=MODULE.replace("assert False", "test_draws(); assert False"))
    project.makepyfile(product=f"CONSTANTS = {[7 * n for n in range(1000, 1900)]}")
    project.makepyfile(test_before="import product\ndef test_before(): pass")
    first = seed_and_draws(project.runpytest_subprocess("-k", "tells or before"))
    assert seed_and_draws(project.runpytest_subprocess("--repeat-failed")) == first


@pytest.mark.slow
def test_processes_of_xdist_draw_by_it(project: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    first = seed_and_draws(project.runpytest_subprocess("-n", "1"))
    assert seed_and_draws(project.runpytest_subprocess(f"--hypothesis-seed={first[0]}")) == first


def test_an_example_may_be_slow_once(project: pytest.Pytester) -> None:
    """hypothesis's own limit of 200 ms is reached on a busy machine."""
    slow = MODULE.replace("import pytest", "import time").replace("@pytest.mark", "# @pytest.mark")
    project.makepyfile(test_some=slow.replace("drawn.append", "drawn or time.sleep(0.3); drawn.append"))
    assert project.runpytest_subprocess("-k", "draws").ret == 0
