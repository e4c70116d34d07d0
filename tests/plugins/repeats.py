"""A second run of failed tests, which hides nothing: at most MOST tests, and only such as are marked `timing`.

    @pytest.mark.timing("a browser draws between two of its checks")

Every run remembers in pytest's cache what failed. `pytest --repeat-failed` (`make test-failed`) runs that once more and
nothing else, and says how each test ended; where a test may not be repeated, it ends at once and says why.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from typing import Any

import pytest

MOST = 5
"""More failed tests are no accident of a busy machine."""

MARKER = "timing"
KEPT = "ollama_engine/last_run"
REASON = "depends on the speed of other processes"
"""The property of a test's report that has the reason given with the marker."""


def refusal(last_run: Mapping[str, Any] | None) -> str:
    """Why what failed in a run may not be repeated; "" where it may.

    last_run: "exitstatus", pytest's, and "failed", {node id: reason at the marker, or "" without one}. None: it did not
    come to its end.
    """
    if last_run is None:
        return "the last run did not come to its end"
    failed = last_run["failed"]
    unmarked = [test for test, reason in failed.items() if not reason]
    if unmarked:
        return f"not marked {MARKER!r}, so not repeated:" + "".join(f"\n  {test}" for test in unmarked)
    if last_run["exitstatus"] != pytest.ExitCode.TESTS_FAILED or not failed:
        return f"the last run ended with {last_run['exitstatus']}, and not for failed tests alone"
    if len(failed) > MOST:
        return f"{len(failed)} tests failed, and at most {MOST} are repeated:" + "".join(f"\n  {t}" for t in failed)
    return ""


class Failures:
    """Remembers what fails, where reports of all processes come together."""

    def __init__(self, cache: pytest.Cache | None) -> None:
        self._cache = cache
        self._failed: dict[str, str] = {}

    def pytest_sessionstart(self) -> None:
        self._keep(None)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed[report.nodeid] = str(dict(report.user_properties).get(REASON, ""))

    @pytest.hookimpl(trylast=True)  # others change the exit status
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        self._keep({"exitstatus": int(session.exitstatus), "failed": self._failed})

    def _keep(self, run: dict[str, Any] | None) -> None:
        if self._cache is not None:
            self._cache.set(KEPT, run)


class Repetition:
    """The second run. It is not remembered itself."""

    def __init__(self, failed: Mapping[str, str]) -> None:
        self._reasons = failed
        self._results = dict.fromkeys(failed, "not run")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or not report.passed:
            self._results[report.nodeid] = report.outcome

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.OK and set(self._results.values()) != {"passed"}:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after all others
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        yield
        for test, result in self._results.items():
            reason = self._reasons.get(test, "")
            terminalreporter.write_line(f"repeated: {test}: {result} ({reason})", yellow=True)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--repeat-failed", action="store_true", help=f"run failed tests marked {MARKER!r} once more")


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        return
    cache: pytest.Cache | None = getattr(config, "cache", None)
    if not config.getoption("repeat_failed"):
        config.pluginmanager.register(Failures(cache))
        return
    last_run = None if cache is None else cache.get(KEPT, None)
    why_not = refusal(last_run)
    if last_run is None or why_not:
        raise pytest.UsageError(why_not)
    config.args[:] = [f"{config.rootpath}/{test}" for test in last_run["failed"]]
    config.pluginmanager.register(Repetition(last_run["failed"]))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker(MARKER)
        if marker is None:
            continue
        if len(marker.args) != 1 or not marker.args[0]:
            raise pytest.UsageError(f"{item.nodeid}: write the reason, as in @pytest.mark.{MARKER}('a browser draws')")
        item.user_properties.append((REASON, marker.args[0]))
