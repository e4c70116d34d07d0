"""A key suite that did not run is told, whatever the reason; and the list has every suite of its kind."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.plugins import key_suites
from tests.plugins.key_suites import MISSING, SUITES, asked_for, not_run

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
MODULES = [module for modules in SUITES.values() for module in modules]
SIGNS = {
    "templates of published models": r"real_templates",
    "SmolLM2": r"smollm2_path: Path",
    "Gemma 3": r"gemma3_path: Path",
    "live transformers": r"import_reference\(\)|mark\.reference\b",
    "Ray": r"importorskip\(\"ray",
}
"""What modules of a suite have in their sources."""


def test_everything_ran() -> None:
    assert not_run(SUITES, [f"{module}::test" for module in MODULES], {}) == []


def test_a_module_without_tests_that_ran() -> None:
    left = [f"{module}::test" for module in MODULES if "docker" not in module]
    assert not_run(SUITES, left, {}) == ["the docker registry: no test of tests/store/test_docker_registry.py ran"]


def test_one_skipped_test_is_enough() -> None:
    page = "tests/server/page/test_page.py"
    ran = [f"{module}::test" for module in MODULES]
    assert not_run(SUITES, ran, {f"{page}::test_b": "no Chromium", "tests/ml/test_a.py::test": "no"}) == [
        f"the page in Chromium: {page}::test_b was skipped: no Chromium"
    ]
    assert not_run(SUITES, [test for test in ran if page not in test], {page: "no playwright"}) == [
        f"the page in Chromium: {page} was skipped: no playwright"
    ]


def test_a_run_answers_for_what_it_was_asked_for() -> None:
    assert asked_for(["tests"], []) == asked_for(["."], []) == {suite: list(found) for suite, found in SUITES.items()}
    assert asked_for(["tests/store"], [])["the docker registry"] == ["tests/store/test_docker_registry.py"]
    assert not any(asked_for(["tests/stor"], []).values())
    assert [suite for suite, modules in asked_for(["tests"], ["tests/ray"]).items() if not modules] == ["Ray"]
    assert [suite for suite, modules in asked_for(["tests/ray"], []).items() if modules] == ["Ray"]


def test_ci_asks_for_all() -> None:
    """It ignores one folder, which has a step of its own."""
    steps = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert re.findall(r"--ignore\S*", steps) == ["--ignore=tests/ray"]
    assert re.findall(r"^ *run_tests (\S+) TEST_OPTIONS=.*\$required", steps, re.MULTILINE) == ["test-all", "test-ray"]
    assert re.findall(r"^required=(.*)", steps, re.MULTILINE) == ["--require-key-suites"]


def test_modules_of_the_list_are_there() -> None:
    assert [module for module in MODULES if not (ROOT / module).is_file()] == []


def test_the_list_has_every_module_of_its_kind() -> None:
    sources = {
        str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in ROOT.glob("tests/**/test_*.py")
    }
    for suite, sign in SIGNS.items():
        found = {path for path, source in sources.items() if re.search(sign, source) and "/plugins/" not in path}
        assert found <= set(MODULES), f"{suite}: {sorted(found - set(MODULES))} belong to the list in key_suites.py"


# -- the plugin --------------------------------------------------------------------------------------------------------


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setattr(key_suites, "SUITES", {"first": ("test_a.py",), "second": ("test_b.py",)})
    pytester.makepyfile(test_a="def test_a(): pass", test_b="def test_b(): pass", test_c="def test_c(): assert False")
    pytester.makeini("[pytest]\naddopts = -p tests.plugins.key_suites -p no:hypothesispytest\n")
    return pytester


def run(project: pytest.Pytester, *tests: str) -> pytest.RunResult:
    return project.runpytest_inprocess("--require-key-suites", *tests)


def test_a_run_with_all_of_them(project: pytest.Pytester) -> None:
    assert run(project, "test_a.py", "test_b.py").ret == pytest.ExitCode.OK
    assert run(project).ret == pytest.ExitCode.TESTS_FAILED
    assert project.runpytest_inprocess("test_a.py").ret == pytest.ExitCode.OK


@pytest.mark.parametrize("source", ["import pytest\npytest.importorskip('nowhere')", "import pytest\n"
                                    "@pytest.mark.skip(reason='no nowhere')\ndef test_b(): pass"])  # fmt: skip
def test_a_run_that_skips_one(project: pytest.Pytester, source: str) -> None:
    project.makepyfile(test_b=source)
    done = run(project)
    assert done.ret == MISSING
    done.stdout.fnmatch_lines(["key suite did not run: second: test_b.py* was skipped: *nowhere*"])


def test_a_run_that_leaves_one_out(project: pytest.Pytester) -> None:
    assert run(project, "test_a.py").ret == pytest.ExitCode.OK, "its module was not asked for"
    done = run(project, "-k", "test_a")
    assert done.ret == MISSING
    done.stdout.fnmatch_lines(["key suite did not run: second: no test of test_b.py ran"])


def test_what_the_cpu_lacks_may_be_skipped(project: pytest.Pytester) -> None:
    project.makepyfile(test_b="from tests.plugins.not_run_here import not_here\n@not_here('amx')\ndef test_b(): pass")
    assert run(project, "test_a.py", "test_b.py").ret == pytest.ExitCode.OK
