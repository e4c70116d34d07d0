"""Ends the run, and says where every thread is, where pytest-timeout cannot end a test.

It raises an error in the main thread, once: too early for a test that hangs while it cleans up, and in vain for one
that waits in C. After a failure it limits nothing any more, and never how long threads keep Python from ending.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Generator

import pytest

GRACE_SECONDS = 30.0
"""How long cleaning up may take after a test was ended, or after the last one."""

_stderr = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.dup(sys.__stderr__.fileno() if sys.__stderr__ else 2)  # what is not captured


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    _watch(item)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(trylast=True)
def pytest_exception_interact(node: pytest.Item | pytest.Collector) -> None:
    """pytest's own faulthandler has cancelled it."""
    if isinstance(node, pytest.Item):
        _watch(node)


def pytest_unconfigure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):  # a process of pytest-xdist waits for the others
        return
    faulthandler.dump_traceback_later(GRACE_SECONDS, exit=True, file=config.stash[_stderr])


def _watch(item: pytest.Item) -> None:
    if seconds := _limit(item):
        faulthandler.dump_traceback_later(seconds + GRACE_SECONDS, exit=True, file=item.config.stash[_stderr])


def _limit(item: pytest.Item) -> float:
    """Seconds that pytest-timeout gives this test; 0: it has no limit, or someone debugs it."""
    mark, asked = item.get_closest_marker("timeout"), item.config.getoption("timeout")
    if item.config.getoption("usepdb"):
        return 0.0
    if mark is not None:
        return float(mark.args[0] if mark.args else mark.kwargs["timeout"])
    return float(item.config.getini("timeout") if asked is None else asked)
