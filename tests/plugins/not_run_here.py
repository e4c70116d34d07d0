"""What this CPU cannot run, counted at the end of a run.

A test says it as the reason of a skip, `not_here("amx")`, or, where it goes through all that there is, as a property of
its report, `record_property(NOT_HERE, "amx")`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator

import pytest

KIND = "not on this CPU"
NOT_HERE = f"{KIND}: "


def not_here(what: str) -> pytest.MarkDecorator:
    """Skips a case that needs what this CPU lacks; cases with the same `what` are counted together."""
    return pytest.mark.skip(reason=NOT_HERE + what)


def summary(counts: Counter[str]) -> str:
    """One line; "" where everything ran."""
    return f"{NOT_HERE}{', '.join(f'{n} cases of {what}' for what, n in counts.most_common())}" if counts else ""


def _skipped_for(report: pytest.TestReport) -> str:
    """What the CPU lacks for a test that was skipped for it; "" for others."""
    return report.longrepr[2].partition(NOT_HERE)[2] if report.skipped and isinstance(report.longrepr, tuple) else ""


class NotRunHere:
    """Where reports of all processes come together."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    @pytest.hookimpl(tryfirst=True)
    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str] | None:
        """A kind of its own, so that the list of what was skipped shows what can be changed."""
        return (KIND, "s", KIND.upper()) if _skipped_for(report) else None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        lacks = _skipped_for(report)
        self._counts.update([lacks] if lacks else [])
        if report.when == "call":
            self._counts.update(str(what) for name, what in report.user_properties if name == NOT_HERE)

    @pytest.hookimpl(wrapper=True, tryfirst=True)  # after all others
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> Generator[None, None, None]:
        yield
        if self._counts:
            terminalreporter.write_line(summary(self._counts), yellow=True)


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(NotRunHere())
