"""The two suites: `pytest` is the quick one, `pytest --exhaustive` (`make test-all`) runs everything; see suite.py."""

from __future__ import annotations

from collections.abc import Iterator
from unittest.mock import patch

import pytest

from ollama_engine.ml import placement
from tests import suite

LEFT_OUT = pytest.StashKey[int]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--exhaustive", action="store_true", help="run the slow tests too, and all at full size")


def pytest_configure(config: pytest.Config) -> None:
    suite.exhaustive = config.getoption("exhaustive")


def pytest_report_header(config: pytest.Config) -> str:
    return "suite: " + ("everything" if config.getoption("exhaustive") else "quick (--exhaustive runs everything)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests that are asked for by their full name run, slow or not."""
    if config.getoption("exhaustive") or any("::" in argument for argument in config.args):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.stash[LEFT_OUT] = len(slow)
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]


@pytest.fixture(scope="session", autouse=True)
def one_thread_by_default() -> Iterator[None]:
    """In the quick suite, engines that are not told how many threads to take have one.

    By default they take all cores. Threads wait for each other by spinning, and where something else runs besides, as
    it does where people work, tests take up to 20 times as long.
    """
    if suite.exhaustive:
        yield
        return
    choose = placement.choose_threads
    with patch.object(placement, "choose_threads", lambda requested: choose(1 if requested is None else requested)):
        yield


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    if LEFT_OUT in config.stash:
        terminalreporter.write_line(
            f"quick suite: {config.stash[LEFT_OUT]} slow tests were left out, others had fewer examples; "
            "make test-all (pytest --exhaustive) runs everything",
            yellow=True,
        )
